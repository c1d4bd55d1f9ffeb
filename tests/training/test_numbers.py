"""The peft backend's loss and gradients are those of the plain computation: packed, accumulated, evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jobs
import numpy as np
import pytest
import torch
from jobs import assert_close, gradients, loop_of
from tiny import BASE, write_rows
from whole_runs import losses, train

from loradock.data.collate import MicroBatch
from loradock.demo.exam import answer
from loradock.errors import ModelError
from loradock.training import packing_check
from loradock.training.batches import step_loader
from loradock.training.events import EvalResult, Event
from loradock.training.job import Job
from loradock.training.loop import Loop
from loradock.training.passes import MicroStep

pytestmark = pytest.mark.thin(2)


def job_of(directory: Path, *settings: str, model: Path, data: Path) -> Job:
    return jobs.job_of(directory, "engine=peft", *settings, model=model, data=data)


def one_step(job: Job, loop: Loop | None = None) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the run's first optimiser step, by the backend's own passes."""
    backend = (loop or loop_of(job)).backend
    inputs = next(iter(step_loader(job, backend.tensors)))
    backend.begin_step()
    batches, scale = backend.micro_batches(inputs, "rows"), 1 / inputs.batches["rows"].supervised_tokens
    loss = sum(
        float(backend.forward_backward(batch, scale=scale, at=MicroStep(step=0, index=index, count=len(batches))))
        for index, batch in enumerate(batches)
    )
    return loss, gradients(job.model)


def test_packed_loss_and_gradients_equal_unpacked_ones(tmp_path: Path, llama: Path, rows: Path) -> None:
    packed = one_step(job_of(tmp_path, "train.packing=true", "train.micro_batch=4", model=llama, data=rows))
    plain = one_step(job_of(tmp_path, "train.packing=false", "train.micro_batch=4", model=llama, data=rows))
    assert packed[0] == pytest.approx(plain[0], rel=1e-5)
    assert_close(packed[1], plain[1])


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_accumulation_equals_one_batch_with_rows_of_random_length(
    tmp_path: Path, llama: Path, rows: Path, micro_batch: int
) -> None:
    settings = ("train.packing=false", f"train.micro_batch={micro_batch}")
    accumulated = one_step(job_of(tmp_path, *settings, model=llama, data=rows))
    whole = one_step(job_of(tmp_path, "train.packing=false", "train.micro_batch=8", model=llama, data=rows))
    assert accumulated[0] == pytest.approx(whole[0], rel=1e-5)
    assert_close(accumulated[1], whole[1])


def test_the_loss_is_the_mean_over_the_supervised_tokens_of_the_step(tmp_path: Path, llama: Path, rows: Path) -> None:
    """Against a loss written out by hand from the labels, row by row."""
    job = job_of(tmp_path, "train.packing=true", "train.micro_batch=2", model=llama, data=rows)
    step = job.steps[0]
    total, count = 0.0, 0
    for batch in step.micro_batches:
        for ids, mask in batch.samples():
            with torch.no_grad():
                logits = job.model(input_ids=torch.tensor(np.array(ids))[None].long()).logits[0].double()
            logs = logits.log_softmax(-1)
            for position in np.flatnonzero(mask):
                total -= float(logs[position - 1, int(ids[position])])
                count += 1
    assert count == step.supervised_tokens
    assert one_step(job)[0] == pytest.approx(total / count, rel=1e-5)


def test_rows_that_are_split_give_one_loss_with_every_backend(tmp_path: Path, llama: Path) -> None:
    """A backend that read each window from its row's beginning had a loss that was too small."""
    data = write_rows(tmp_path / "long.jsonl", longest=60)
    settings = ("data.max_length=24", "train.max_steps=2", "train.global_batch=8", "model.compute_dtype=float32")
    runs = {
        engine: train(tmp_path / engine, *settings, f"engine={engine}", model=llama, data=data)
        for engine in ("fast", "peft")
    }
    assert runs["fast"].record["plan"]["data"]["split_rows"] > 10
    assert losses(runs["fast"]) == pytest.approx(losses(runs["peft"]), rel=1e-5)


def test_gradients_are_bit_equal_before_and_after_an_evaluation_and_a_generation(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    job = job_of(tmp_path, "train.micro_batch=4", "data.validation=8", model=llama, data=rows)
    loop = loop_of(job)
    _, before = one_step(job, loop)
    loop.evaluate()
    answer(job.model, job.tokenizer, [[5, 6, 7], [8, 9]], max_new_tokens=4)
    _, after = one_step(job, loop)
    assert all(torch.equal(before[name], after[name]) for name in before)


def two_documents(job: Job) -> tuple[list[int], list[int]]:
    batch: MicroBatch = job.steps[0].micro_batches[0]
    first, second = [ids.tolist() for ids, _ in batch.samples()][:2]
    return first, second


def test_packed_documents_do_not_see_one_another(tmp_path: Path, llama: Path, rows: Path) -> None:
    job = job_of(tmp_path, "train.packing=true", "train.micro_batch=4", model=llama, data=rows)
    vocabulary = job.plan.model.vocabulary
    assert packing_check.check(job.model, *two_documents(job), dtype="float32", vocabulary=vocabulary) < 1e-6


def test_a_planted_leak_is_refused(tmp_path: Path, llama: Path, rows: Path) -> None:
    """A model that ignores where documents begin, as some attention implementations do."""
    job = job_of(tmp_path, "train.packing=true", "train.micro_batch=4", model=llama, data=rows)

    class Leaking(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
            return self.model(input_ids=input_ids, use_cache=use_cache)

    with pytest.raises(ModelError, match="packing leaks"):
        packing_check.check(
            Leaking(job.model), *two_documents(job), dtype="float32", vocabulary=job.plan.model.vocabulary
        )


def test_positions_that_run_on_over_documents_are_refused(tmp_path: Path, llama: Path, rows: Path) -> None:
    """Attention apart but positions counted on: nothing moves, yet the loss is not the one the row has alone."""
    job = job_of(tmp_path, "train.packing=true", "train.micro_batch=4", model=llama, data=rows)

    class Shifted(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
            starts = (position_ids == 0).cumsum(-1) > 1
            moved = torch.where(starts, position_ids * 7, position_ids)
            return self.model(input_ids=input_ids, position_ids=moved, use_cache=use_cache)

    with pytest.raises(ModelError, match="packing leaks"):
        packing_check.check(
            Shifted(job.model), *two_documents(job), dtype="float32", vocabulary=job.plan.model.vocabulary
        )


def rows_of(batches: Sequence[MicroBatch]) -> list[int]:
    return [int(row) for batch in batches for row in batch.rows]


def test_a_step_sees_the_same_rows_packed_or_not(tmp_path: Path, llama: Path, rows: Path) -> None:
    seen = [
        rows_of(job_of(tmp_path, f"train.packing={packing}", model=llama, data=rows).steps[1].micro_batches)
        for packing in ("true", "false")
    ]
    assert seen[0] == seen[1]


def test_the_shipped_base_is_the_one_these_tokenizers_come_from(llama: Path) -> None:
    assert (llama / "tokenizer.json").read_bytes() == (BASE / "tokenizer.json").read_bytes()


def test_the_validation_loss_does_not_depend_on_the_micro_batch(tmp_path: Path, llama: Path, rows: Path) -> None:
    """A mean of batch means would: rows have different numbers of supervised tokens."""
    found = []
    for micro_batch in (1, 5):
        settings = (f"train.micro_batch={micro_batch}", "data.validation=8")
        job = job_of(tmp_path, *settings, model=llama, data=rows)
        loop, events = loop_of(job), list[Event]()
        loop.emit = events.append
        loop.evaluate()
        found += [event.loss for event in events if isinstance(event, EvalResult)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_each_validation_set_with_a_name_has_the_loss_it_has_alone_and_the_whole_is_the_mean_over_tokens(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    lines = rows.read_text(encoding="utf-8").splitlines(keepends=True)
    chat, code = tmp_path / "chat.jsonl", tmp_path / "code.jsonl"
    chat.write_text("".join(lines[:5]), encoding="utf-8")
    code.write_text("".join(lines[5:12]), encoding="utf-8")

    def evaluated(name: str, *settings: str) -> EvalResult:
        loop = loop_of(job_of(tmp_path / name, "train.micro_batch=3", *settings, model=llama, data=rows))
        events = list[Event]()
        loop.emit = events.append
        loop.evaluate()
        return next(event for event in events if isinstance(event, EvalResult))

    both = evaluated("both", f"data.validation.chat={chat}", f"data.validation.code={code}")
    alone = {path.stem: evaluated(path.stem, f"data.validation={path}") for path in (chat, code)}
    assert both.losses == pytest.approx({name: each.loss for name, each in alone.items()}, rel=1e-6)
    counts = {name: each.supervised_tokens for name, each in alone.items()}
    assert both.supervised_tokens == sum(counts.values())
    mean = sum(alone[name].loss * count for name, count in counts.items()) / both.supervised_tokens
    assert both.loss == pytest.approx(mean, rel=1e-6)
    assert alone["chat"].losses == {}
