"""The reference's log-probabilities are computed once, are the run's own, and are continued with to the bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import job_of, loop_of
from tiny import copy_tree
from whole_runs import adapter_bytes, losses, train

from loradock.training.backends.autograd import AutogradBackend
from loradock.training.backends.fast.backend import FastBackend
from loradock.training.objectives.kept_reference import KeptReference, StepReference, key_of
from loradock.training.objectives.preference import Preference
from loradock.training.run import Result

EPOCH, STEPS = 3, 8
"""Steps of an epoch, and of a run: two whole epochs and most of a third."""
SETTINGS = (
    *("objective=preference", f"train.max_steps={STEPS}", "train.global_batch=4", "train.workers=0"),
    *("train.schedule=constant", "train.warmup=0", "train.learning_rate=1e-2", "lora.rank=4", "lora.dropout=0.1"),
    *("data.max_length=64", "checkpoints.every=1", "checkpoints.keep=9"),
)
LOSSES: dict[str, tuple[str, ...]] = {"dpo": (), "kto": ("preference.loss=kto", "train.global_batch=8")}
CPU = torch.device("cpu")


def write(path: Path, *, changed: int | None = None) -> Path:
    """Pairs of different lengths; one may have another answer."""
    rows = [
        {
            "prompt": f"{number} stones and {number % 3}",
            "chosen": " lamp" * (1 + number % 4 + 2 * (number == changed)),
            "rejected": " cat, cat" * (1 + number % 2),
        }
        for number in range(EPOCH * 4)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("pairs") / "pairs.jsonl")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each pass of the reference."""
    found: list[str] = []

    def counted(plain: Callable[[Any], AbstractContextManager[None]]) -> Callable[[Any], AbstractContextManager[None]]:
        def reference_model(self: Any) -> AbstractContextManager[None]:
            found.append(type(self).__name__)
            return plain(self)

        return reference_model

    for backend in (AutogradBackend, FastBackend):
        monkeypatch.setattr(backend, "reference_model", counted(backend.reference_model))
    return found


def decided(run: Result) -> dict[str, str]:
    return {each["name"]: each["value"] for each in run.record["plan"]["decisions"]}


@pytest.mark.thin(6)
@pytest.mark.parametrize("loss", LOSSES)
def test_values_that_are_kept_are_those_that_would_be_computed(
    loss: str, llama: Path, pairs: Path, tmp_path: Path, passes: list[str]
) -> None:
    """To the bit where an answer is alone in its pass, or a pair; else to the rounding of sums in another order."""
    alone = ("engine=peft", "train.packing=false", f"train.micro_batch={1 + (loss == 'dpo')}", "lora.dropout=0")
    for form in (alone, ("engine=fast", "train.micro_batch=8")):
        settings = (*SETTINGS, *LOSSES[loss], *form)
        runs, counts = [], []
        for keeps in ("true", "false"):
            passes.clear()
            more = f"preference.keep_reference={keeps}"
            runs.append(train(tmp_path / f"{form[0]}-{keeps}", *settings, more, model=llama, data=pairs))
            counts.append(len(passes))
        assert [decided(run)["reference"] for run in runs] == ["kept", "as it comes"]
        if form == alone:
            of_step = {"dpo": 4, "kto": 8}[loss]  # and as many of KTO's mismatched answers
            assert counts[1] == of_step * STEPS * (1 + (loss == "kto"))
            assert counts[1] - counts[0] == of_step * (STEPS - EPOCH)
            assert adapter_bytes(runs[0]) == adapter_bytes(runs[1])
            assert losses(runs[0]) == losses(runs[1])
        else:
            assert counts[0] < counts[1]
            assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=2e-5)


@pytest.mark.thin(6)
def test_of_held_out_answers_too(llama: Path, pairs: Path, tmp_path: Path, passes: list[str]) -> None:
    for loss, more in LOSSES.items():
        settings = (*SETTINGS, *more, "train.max_steps=1", "data.validation=0.5", "engine=fast")
        found, counts = [], []
        for keeps in ("true", "false"):
            passes.clear()
            job = job_of(tmp_path, *settings, f"preference.keep_reference={keeps}", model=llama, data=pairs)
            loop = loop_of(job)
            assert job.evaluation is not None
            with torch.no_grad(), loop.backend.evaluating():
                found += [job.objective.evaluate(loop.backend, job.evaluation, poll=lambda: None) for _ in range(3)]
            counts.append(len(passes))
        assert counts[1] == 3 * counts[0] > 0, loss
        assert all(each == found[0] for each in found)


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ["fast", "peft"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_that_is_cut_off_in_any_epoch_ends_with_the_undisturbed_bits(
    loss: str, engine: str, llama: Path, pairs: Path, tmp_path: Path, passes: list[str]
) -> None:
    settings = (*SETTINGS, *LOSSES[loss], f"engine={engine}", "train.micro_batch=8")
    whole = train(tmp_path / "whole", *settings, model=llama, data=pairs)
    for last in (1, EPOCH + 1):
        copy = copy_tree(whole.directory, tmp_path / f"from-{last}")
        for step in range(last + 1, STEPS + 1):
            shutil.rmtree(copy / "checkpoints" / f"checkpoint-{step}")
        shutil.rmtree(copy / "adapter")
        passes.clear()
        again = train(copy, *settings, model=llama, data=pairs)
        assert again.record["resumed_from"] == f"checkpoint-{last}"
        assert losses(again) == losses(whole)
        assert adapter_bytes(again) == adapter_bytes(whole)
        assert bool(passes) == (loss == "kto" or last < EPOCH)


@pytest.mark.thin(6)
def test_values_of_other_rows_or_lengths_or_another_reference_are_never_used(
    llama: Path, pairs: Path, tmp_path: Path
) -> None:
    short = (*SETTINGS, "train.max_steps=1")
    first = train(tmp_path / "first", *short, model=llama, data=pairs)
    own = first.record["fingerprint"]
    assert "base.weights" in own
    for field in ("base.weights", "base.config", "versions.torch", "plan.engine", "plan.compute_dtype", "plan.packing"):
        assert key_of({**own, field: "another"}) != key_of(own), field
    variants: dict[str, tuple[Path, tuple[str, ...], bool]] = {
        "row": (write(tmp_path / "changed.jsonl", changed=2), (), False),
        "length": (pairs, ("data.max_length=20", "data.long_rows=truncate"), False),
        "adapter": (pairs, (f"lora.adapter={first.adapter}",), False),
        "loss": (
            pairs,
            ("preference.loss=ipo", "preference.beta=0.3", "train.learning_rate=1e-3", "train.global_batch=3"),
            True,
        ),
    }
    for name, (data, settings, is_same) in variants.items():
        other = train(tmp_path / name, *short, *settings, model=llama, data=data).record["fingerprint"]
        assert (key_of(other) == key_of(own)) == is_same, name


@pytest.mark.thin(6)
def test_a_changed_row_that_is_allowed_is_computed_anew(llama: Path, tmp_path: Path, passes: list[str]) -> None:
    file = write(tmp_path / "pairs.jsonl")
    settings = (*SETTINGS, "engine=fast", "train.micro_batch=8")
    train(tmp_path / "run", *settings, f"train.max_steps={EPOCH + 1}", model=llama, data=file)
    same = copy_tree(tmp_path / "run", tmp_path / "same")
    longer, allowed = (*settings, f"train.max_steps={EPOCH + 2}"), ["train.max_steps"]
    passes.clear()
    train(same, *longer, model=llama, data=file, allowed=allowed)
    assert not passes
    write(file, changed=2)
    allowed += [f"data.preferences.{name}" for name in ("content", "tokens", "rows")]
    again = train(tmp_path / "run", *longer, model=llama, data=file, allowed=allowed)
    assert again.record["resumed_from"] == f"checkpoint-{EPOCH + 1}"
    assert len(passes) == 1


@pytest.mark.thin(6)
def test_a_run_that_kept_nothing_is_continued_and_keeps_what_comes(
    llama: Path, pairs: Path, tmp_path: Path, passes: list[str]
) -> None:
    """As one of an earlier version: its checkpoints hold no values."""
    settings = (*SETTINGS, "engine=fast", "train.micro_batch=8")
    cut = (*settings, "preference.keep_reference=false")
    first = train(tmp_path / "run", *cut, "train.max_steps=4", model=llama, data=pairs)
    assert len(passes) == 4
    assert decided(first)["reference"] == "as it comes"
    longer = (*settings, f"train.max_steps={4 * EPOCH}")
    again = train(tmp_path / "run", *longer, model=llama, data=pairs, allowed=("train.max_steps",))
    assert again.record["resumed_from"] == "checkpoint-4"
    assert 4 + EPOCH <= len(passes) <= 3 * EPOCH  # none in the last epoch
    assert decided(again)["reference"] == "kept"


@pytest.mark.thin(6)
def test_an_attempt_with_less_memory_begins_with_nothing_known(llama: Path, pairs: Path, tmp_path: Path) -> None:
    job = job_of(tmp_path, *SETTINGS, "engine=fast", model=llama, data=pairs)
    loop = loop_of(job)
    loop.start()
    loop.make_step(next(iter(loop.loader or ())))
    loop.close()
    objective = job.objective
    assert isinstance(objective, Preference)
    assert objective.kept is not None
    assert objective.kept.is_known.sum() == 8
    assert (objective.kept.values != 0).sum() == 8
    objective.begin(loop.backend)
    assert not objective.kept.is_known.any()


def test_of_a_document_that_comes_twice_in_a_step_one_value_is_kept_and_idle_ones_are_none() -> None:
    kept = KeptReference(4, key="k", device=CPU)
    step = StepReference(kept, torch.tensor([3, 1, 3]))
    assert step.known is None
    for places, values in (([0, 1], [-1.0, -2.0]), ([2, -1], [-1.5, -9.0])):
        assert step.of(torch.tensor(places), lambda values=values: torch.tensor(values)) is not None
    step.close(None)  # pyright: ignore[reportArgumentType]
    assert kept.values.tolist() == [0, -2, 0, -1]
    assert kept.is_known.tolist() == [False, True, False, True]
    later = StepReference(kept, torch.tensor([1, 3]))
    found = later.of(torch.tensor([1, -1]), lambda: pytest.fail("it is known"))
    assert found is not None
    assert found[0] == -1
