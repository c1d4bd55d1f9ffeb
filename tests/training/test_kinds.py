"""A third kind of samples beside rows and pairs, two answers of one prompt: a file and a line, by the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from adding import copied, forked, insert
from proven import unchecked
from safetensors.torch import load_file

FORMAT = """
from loradock.data.formats.base import Format, Pairs, Side
from loradock.data.formats.fields import text_of

def convert(row):
    question, good, bad = (Side("", text_of(row, name)) for name in ("question", "good", "bad"))
    return Pairs(question, (good,), (bad,))

FORMAT = Format(name="choices", fields=("question", "good", "bad"), required=("question", "good", "bad"),
                convert=convert, example='{"question": "2+2=", "good": "4", "bad": "5"}', kind="choices")
"""
SAMPLES = '''
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from loradock.data.collate import Batch, MicroBatch
from loradock.data.formats.base import Completion
from loradock.data.row_task import Task
from loradock.data.samples.base import Part, Preparing, SampleSet
from loradock.data.selection import Selection
from loradock.data.steps import BatchShape, Ranks, Stream
from loradock.facts import DataFacts

class Preparer:
    """Two documents of a row: the prompt with the good answer, which begins the sample, and with the bad one."""

    def __init__(self, rows):
        self.rows = rows

    def __call__(self, chunk):
        completions = [
            (line, Completion(sample.query.text, side.text)) for line, sample in chunk for side in sample.sides[1:]
        ]
        made, refused = self.rows(completions)
        return replace(made, roles=np.arange(len(made.lengths), dtype=np.uint8) % 2), refused

class Choices(Task):
    @property
    def identity(self):
        return {"choices": super().identity}

    def preparer(self):
        return Preparer(super().preparer())

@dataclass(frozen=True, kw_only=True)
class ChoicePart(Part):
    @property
    def used(self):
        return f"{len(self.chosen)} choices"

@dataclass(frozen=True)
class Draw:
    prepared: object
    shape: BatchShape
    ranks: Ranks

    def reshaped(self, micro_batch):
        return replace(self, shape=replace(self.shape, micro_batch=micro_batch))

    def __call__(self, samples, *, epoch):
        lengths = np.diff(self.prepared.offsets)
        both = np.stack([2 * samples, 2 * samples + 1], axis=1)
        groups = self.shape.groups(lengths[both].sum(axis=1).tolist(), processes=self.ranks.world_size)
        mine = [(both[first:last].ravel(), np.arange(2 * first, 2 * last))
                for first, last in groups[self.ranks.rank :: self.ranks.world_size]]
        micro_batches = tuple(
            MicroBatch(prepared=self.prepared, rows=rows, places=places, starts=np.zeros(len(rows), dtype=np.int32),
                       lengths=lengths[rows].astype(np.int32), supervised_tokens=int(self.prepared.learned[rows].sum()),
                       is_packed=self.shape.packing, purpose="score")
            for rows, places in mine
        )
        return Batch(micro_batches=micro_batches, samples=len(samples), tokens=int(lengths[both].sum()),
                     supervised_tokens=int(self.prepared.learned[both.ravel()].sum()), row_ids=samples,
                     documents=both.size)

class Order:
    def __init__(self, chosen, size):
        self.chosen, self.size = chosen, size

    def __len__(self):
        return max(1, len(self.chosen) // self.size)

    def batch(self, epoch, step):
        return np.random.default_rng(epoch).permutation(self.chosen)[step * self.size : (step + 1) * self.size]

@dataclass(frozen=True, kw_only=True)
class ChoiceSamples(SampleSet):
    kind: ClassVar = "choices"

    @classmethod
    def of(cls, config, preparing: Preparing):
        prepared = preparing.prepared(config.data, Choices.of)
        selection = Selection.of(prepared, deduplicate=config.data.deduplicate)
        part = ChoicePart(prepared=prepared, chosen=selection.samples)
        return cls(config=config, train=part, validation=None, selection=selection)

    @property
    def parts(self):
        return {"choices": self.train}

    @property
    def samples_a_step(self):
        return self.config.train.global_batch

    @property
    def facts(self):
        prepared, steps = self.train.prepared, len(Order(self.train.chosen, self.samples_a_step))
        longest = int(np.diff(prepared.offsets).max())
        return DataFacts(train_rows=prepared.rows, validation_rows=0, tokens=prepared.tokens,
                         supervised_tokens=prepared.supervised_tokens, limit_tokens=2 * longest, longest_tokens=longest,
                         samples_per_epoch=prepared.rows, steps_per_epoch=steps, epoch_tokens=prepared.tokens)

    def stream(self, plan, *, facts):
        shape = BatchShape(micro_batch=plan.micro_batch.value, packing=plan.packing.value,
                           max_length=plan.data.limit_tokens)
        ranks = Ranks(world_size=facts.world_size, rank=facts.rank)
        return Stream(Order(self.train.chosen, self.samples_a_step), Draw(self.train.prepared, shape, ranks))

    def turns(self, plan, *, facts):
        return None

    @property
    def notes(self):
        return [f"choices: {len(self.train.chosen)} prompts with two answers"]

    def as_dict(self):
        return {"choices": len(self.train.chosen)}
'''
PURE = """
from loradock.catalog.objectives.base import ObjectiveSpec
SPEC = ObjectiveSpec(name="chooses", meaning="the better one of two answers", samples=frozenset({"choices"}),
                     passes=frozenset({"score"}), computed_by="chooses:Chooses")
"""
COMPUTED = '''
import pytest
import torch
from loradock.training.objectives.supervised import Supervised
from loradock.training.passes import MicroStep

class Chooses(Supervised):
    """-log sigmoid of how much likelier the good answer is than to the base (DPO, Rafailov et al. 2023, beta 1)."""

    def step(self, backend, inputs, *, step, poll):
        total, samples = torch.zeros(1, device=backend.device), inputs.batches["choices"].samples
        batches = backend.micro_batches(inputs, "choices")
        for index, batch in enumerate(batches):
            poll()
            with backend.reference_model(), torch.no_grad():
                base = backend.score(batch, at=None, keeps=False).log_probabilities
            scored = backend.score(batch, at=MicroStep(step=step, index=index, count=len(batches)), keeps=True)
            sums = (scored.log_probabilities - base).detach().requires_grad_()
            with torch.enable_grad():
                used = sums[: len(sums) // 2 * 2].view(-1, 2)
                loss = -torch.nn.functional.logsigmoid(used[:, 0] - used[:, 1]).sum() / samples
            loss.backward()
            scored.backward(sums.grad)
            total += loss.detach()
        return total
'''


@pytest.mark.thin(6)
def test_two_answers_of_a_prompt_are_a_kind_of_samples_that_trains_and_continues(tmp_path: Path, llama: Path) -> None:
    package = copied(tmp_path)
    (package / "data" / "formats" / "choices.py").write_text(FORMAT, "utf-8")
    insert(package / "catalog" / "formats.py", '    "choices": "choices:FORMAT",\n', after="dict[str, str] = {\n")
    words = (
        'KindSpec(name="choices", holds="two answers of each prompt", meaning="prompts with answers", documents=2),\n'
    )
    insert(package / "catalog" / "samples.py", f"        {words}", after="    for spec in (\n")
    (package / "data" / "samples" / "choices.py").write_text(SAMPLES, "utf-8")
    table = package / "data" / "samples" / "__init__.py"
    insert(table, "ChoiceSamples, ", after="= (PairSamples, ")
    insert(table, "from loradock.data.samples.choices import ChoiceSamples\n", after="import SampleSet\n")
    (package / "catalog" / "objectives" / "chooses.py").write_text(PURE, "utf-8")
    (package / "training" / "objectives" / "chooses.py").write_text(COMPUTED, "utf-8")
    table = package / "catalog" / "objectives" / "__init__.py"
    insert(table, "        chooses.SPEC,\n", after="        gritlm.SPEC,\n")
    insert(table, " chooses,", after="import embedding, gritlm,")
    rows = [{"question": f"{number} is", "good": "stone lamp", "bad": "cat"} for number in range(32)]
    (tmp_path / "choices.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")

    def train(output: str, steps: int, *more: str) -> list[float]:
        settings = ("train.global_batch=8", "train.learning_rate=0.01", "train.schedule=constant", "train.warmup=0")
        settings += ("logging.every=1", "data.cache=cache", *more)
        words = ["train", "--model", str(llama), "--data", "choices.jsonl", "--output", output]
        words += ["--max-steps", str(steps)]
        words += ["--allow-change", "train.max_steps"] if (tmp_path / output).exists() else []
        typed_words = [word for setting in settings for word in ("--set", setting)]
        done = typing(tmp_path, *words, *typed_words, unchecked("the package is a copy"))
        assert done.returncode == 0, done.stderr
        lines = map(json.loads, (tmp_path / output / "metrics.jsonl").read_text("utf-8").splitlines())
        return [line["loss"] for line in lines if line["kind"] == "train"]

    with forked(tmp_path) as typing:
        refused = typing(tmp_path, "train", "--model", str(llama), "--data", "choices.jsonl")
        assert refused.returncode == 78
        found = refused.stderr
        assert "choices.jsonl holds two answers of each prompt; objective supervised learns nothing of it" in found
        assert "--set objective=chooses" in found

        losses = train("whole", 6, "objective=chooses")
        assert losses[0] == pytest.approx(math.log(2), abs=1e-4), "the adapter begins as the base"
        assert losses[-1] < 0.5 * losses[0]
        assert train("cut", 3, "objective=chooses") == losses[:3]
        assert train("cut", 6, "objective=chooses") == losses
        peft = train("peft", 6, "objective=chooses", "engine=peft", "train.micro_batch=2")
        assert peft == pytest.approx(losses, rel=1e-2)
    name = Path("adapter") / "adapter_model.safetensors"
    whole, cut = (load_file(tmp_path / run / name) for run in ("whole", "cut"))
    assert all(torch.equal(whole[key], cut[key]) for key in whole)
    record: dict[str, Any] = json.loads((tmp_path / "whole" / "run.json").read_text("utf-8"))
    assert record["data"]["choices"] == 32
    assert record["data"]["sources"][0]["rows"] == 64
