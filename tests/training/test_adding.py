"""docs/adding.md's optimiser, schedule, storage, objective and family, carried out on a copy by the command line."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from adding import Typing, copied, forked, insert, parts_of, typed
from bitsandbytes import functional
from families import make_model
from faults.forking import Forking
from proven import unchecked
from safetensors.torch import load_file
from tiny import write_pairs


def add(package: Path, name: str, pure: str, computing: str, line: str) -> None:
    """One more objective in a copy of the package: its two faces, and its line in the table."""
    (package / "catalog" / "objectives" / f"{name}.py").write_text(pure, "utf-8")
    (package / "training" / "objectives" / f"{name}.py").write_text(computing, "utf-8")
    table = package / "catalog" / "objectives" / "__init__.py"
    insert(table, line, after="        gritlm.SPEC,\n")
    insert(table, f" {name},", after="import embedding, gritlm,")


def trained(
    folder: Path, typing: Typing, name: str, *settings: str, model: Path, data: Path
) -> dict[str, Any]:  # fmt: skip
    """Two steps by an objective: its losses, what an evaluation reports, and why it has its engine."""
    options = ("--model", str(model), "--data", str(data), "--output", name, "--max-steps", "2")
    every = (f"objective={name}", "logging.every=1", "data.validation=4", "train.micro_batch=4", *settings)
    proof = unchecked("the package is a copy")
    done = typing(folder, "train", *options, proof, *(word for each in every for word in ("--set", each)))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(each) for each in (folder / name / "metrics.jsonl").read_text("utf-8").splitlines()]
    decisions = json.loads((folder / name / "run.json").read_text("utf-8"))["plan"]["decisions"]
    return {
        "losses": [each["loss"] for each in lines if each["kind"] == "train"],
        "evaluated": next(each for each in lines if each["kind"] == "eval"),
        "engine": next(each for each in decisions if each["name"] == "engine"),
    }


@pytest.mark.thin(6)
def test_the_optimiser_schedule_and_storage_of_the_walk_throughs_are_asked_for_on_the_command_line_and_train(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    (entry,) = parts_of("An optimiser")
    (schedule,) = parts_of("A schedule")
    storage, place = parts_of("A storage")
    package = copied(tmp_path)
    insert(package / "catalog" / "optimizers.py", entry, after="    for entry in (\n")
    insert(package / "catalog" / "schedules.py", schedule, after="    for entry in (\n")
    table = package / "catalog" / "storages" / "__init__.py"
    insert(table, f"\n{storage}", after="NF4_SCALES = Scales(block=64, bits=8, group=256)\n")
    insert(table, place.strip(), after="for storage in (")

    own = ("train.optimizer=adamw_amsgrad", "train.schedule=halved", "train.warmup=0", "logging.every=1")
    settings = (*own, "model.quantization=fp4", "train.max_steps=2", "lora.rank=4", "data.cache=cache")
    options = ("--model", str(llama), "--data", str(rows), "--output", "run", unchecked("the package is a copy"))
    with forked(tmp_path) as typing:
        done = typing(tmp_path, "train", *options, *(word for setting in settings for word in ("--set", setting)))
        assert done.returncode == 0, done.stderr
        assert "dtypes: base fp4 in uint8" in done.stderr
        merged = typing(tmp_path, "merge", "run", "merged")
    assert merged.returncode == 0, merged.stderr
    name = "model.layers.0.mlp.down_proj.weight"
    base, value = (load_file(each / "model.safetensors")[name].float() for each in (llama, tmp_path / "merged"))
    packed, state = functional.quantize_4bit(base, quant_type="fp4", blocksize=64, compress_statistics=True)
    change = (value - functional.dequantize_4bit(packed, state)).abs().mean()
    assert change < (value - base).abs().mean() / 4, "the adapter is added to the weights that it was trained on"
    decisions = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["plan"]["decisions"]
    (why,) = (decision["why"] for decision in decisions if decision["name"] == "engine")
    assert "its optimiser is adamw_fused, not adamw_amsgrad" in why, "the fast engine has it not"
    state = torch.load(tmp_path / "run" / "checkpoints" / "checkpoint-2" / "training_state.pt", weights_only=True)
    assert all("max_exp_avg_sq" in each for each in state["optimizer"]["state"].values())
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["learning_rate"] for line in lines if line["kind"] == "train"] == [2e-4, 1e-4]


PURE = """
from loradock.catalog.objectives.base import ObjectiveSpec
SPEC = ObjectiveSpec(
    name={name!r}, meaning="a toy", computed_by={computed_by!r},
    samples=frozenset({{{samples!r}}}), passes=frozenset({{{passes!r}}}), **{more!r},
)
"""
BY_SCORES = """
import torch
from loradock.training.objectives.supervised import Supervised
from loradock.training.passes import MicroStep

class ByScores(Supervised):
    def likelihood(self, backend, inputs, *, scale, step, poll):
        total, batches = torch.zeros(1, device=backend.device), backend.micro_batches(inputs, "rows")
        for index, batch in enumerate(batches):
            poll()
            scored = backend.score(batch, at=MicroStep(step=step, index=index, count=len(batches)), keeps=True)
            scored.backward(torch.full_like(scored.log_probabilities, -scale))
            total -= scale * scored.log_probabilities.sum()
        return total
"""
WARMER = """
from loradock.training.objectives.embedding import Embedding

class Warmer(Embedding):
    def __init__(self, config):
        self.embedding = config.embedding.model_copy(update={"temperature": 1.0})
"""


@pytest.mark.thin(6)
def test_objectives_of_scored_documents_and_of_pairs_are_two_faces_and_a_line(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    package, pairs = copied(tmp_path), write_pairs(tmp_path / "pairs.jsonl")
    for name, samples, passes, kind, source, more in (
        ("by_scores", "rows", "score", "ByScores", BY_SCORES, {}),
        (
            "warmer",
            "pairs",
            "embed",
            "Warmer",
            WARMER,
            {"batch_key": "embedding.global_batch", "keys": ("embedding.",)},
        ),
    ):
        pure = PURE.format(name=name, samples=samples, passes=passes, computed_by=f"{name}:{kind}", more=more)
        add(package, name, pure, source, f"        {name}.SPEC,\n")
    embedding = ("embedding.global_batch=8", "embedding.query_length=32", "embedding.passage_length=32")
    plain = trained(tmp_path, forking.run, "supervised", model=llama, data=rows)
    cold = trained(tmp_path, forking.run, "embedding", *embedding, model=llama, data=pairs)
    with forked(tmp_path) as typing:
        scored = trained(tmp_path, typing, "by_scores", model=llama, data=rows)
        warm = trained(tmp_path, typing, "warmer", *embedding, model=llama, data=pairs)
        words = ("train", "--model", str(llama), "--data", str(rows), "--set")
        cut = typing(tmp_path, *words, "objective=warmer", "--set", "train.parallel=zero2")
        refused = typing(tmp_path, *words, "objective=warmer")
    assert scored["engine"]["value"] == plain["engine"]["value"] == "fast"
    assert scored["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert cut.returncode == 78
    assert "objective warmer is not trained on a model that is cut among GPUs" in cut.stderr

    assert warm["engine"]["value"] == "fast"
    # of 8 passages and a negative each, the lower the temperature the farther from chance
    assert abs(warm["losses"][0] - math.log(16)) < abs(cold["losses"][0] - math.log(16))
    assert "in_batch_accuracy" in warm["evaluated"]
    assert refused.returncode == 78
    assert "objective warmer learns nothing of it" in refused.stderr


@pytest.mark.thin(6)
def test_the_objective_of_the_walk_through_trains_two_steps(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    add(copied(tmp_path), "reweighted", *parts_of("An objective"))
    plain = trained(tmp_path, forking.run, "supervised", model=llama, data=rows)
    reweighted = trained(tmp_path, typed, "reweighted", model=llama, data=rows)
    assert (plain["engine"]["value"], reweighted["engine"]["value"]) == ("fast", "peft")
    assert "objective reweighted computes a loss of its own" in reweighted["engine"]["why"]
    assert "perplexity" in plain["evaluated"]
    assert "perplexity" not in reweighted["evaluated"]
    for weighted, whole in zip(reweighted["losses"], plain["losses"], strict=True):
        assert 0 < weighted < whole / 2

    refused = typed(tmp_path, "config", "show", "--set", "objective=reweigthed")
    assert refused.returncode == 78
    assert "reweighted" in refused.stderr


@pytest.mark.thin(6)
def test_the_family_of_the_walk_through_is_served_by_the_fast_engine_which_checks_it(
    tmp_path: Path, rows: Path, forking: Forking
) -> None:
    # heads that turn otherwise show in the losses of weights as large as these
    model = make_model(tmp_path / "helium", "helium", head_dim=16, attention_bias=True, initializer_range=0.25)
    package = copied(tmp_path)
    unserved = trained(tmp_path, forking.run, "supervised", model=model, data=rows)
    assert unserved["engine"]["value"] == "peft"
    assert "HeliumModel" in unserved["engine"]["why"]

    module, line = parts_of("A family of decoders")
    (package / "training" / "backends" / "fast" / "families" / "helium.py").write_text(module, "utf-8")
    insert(package / "catalog" / "families" / "__init__.py", line, after="FAMILIES = (\n")
    shutil.rmtree(tmp_path / "supervised")
    served = trained(tmp_path, typed, "supervised", model=model, data=rows)
    assert served["engine"]["value"] == "fast", served["engine"]["why"]
    assert served["losses"] == pytest.approx(unserved["losses"], rel=1e-4)
    checks = json.loads((tmp_path / "supervised" / "run.json").read_text("utf-8"))["engine"]
    assert ("self-check", "passed") in [(check["name"], check["value"]) for check in checks]
