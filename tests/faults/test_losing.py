"""A save changes nothing of what is trained, whoever shares the model how, and a run that is killed loses nothing.

Two forked processes (gloo on the CPU); under DeepSpeed: tests/training/backends/zero/test_losing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faults.forking import Forking
from faults.losing import (
    FIRST_SAVES,
    KILLS,
    Left,
    checkpointed,
    left,
    lost_after_saves,
    lost_at_random,
    settings,
    write_contradicting_rows,
)
from faults.pairs import SLOW, STEPS, Pair, arguments, begun

PEERS = "limits.peer_seconds=10"
MODES = {
    "fsdp": ("auto", ("train.parallel=fsdp",)),
    "ddp": ("fast", ("train.parallel=ddp",)),
    "ddp-peft": ("peft", ("train.parallel=ddp",)),
}

Begin = Callable[..., Pair]


@pytest.fixture(scope="module", params=["fsdp", "ddp", pytest.param("ddp-peft", marks=pytest.mark.full)])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def begin(mode: str, tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path, forking: Forking) -> Begin:
    validation = write_contradicting_rows(tmp_path_factory.mktemp("validation") / "rows.jsonl")
    engine, shared = MODES[mode]

    def start(folder: Path, code: str = "", **shape: bool) -> Pair:
        asked = settings(validation, **shape)
        return begun(forking, folder, arguments(llama, rows, *shared, *asked, PEERS, engine=engine), code=code)

    return start


def finished(pair: Pair) -> Left:
    assert pair.finish() == [0, 0], pair.text()
    return left(pair.folder)


@pytest.fixture(scope="module")
def saving(begin: Begin, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The run that saves at every step, and that nobody disturbs."""
    pair = begin(tmp_path_factory.mktemp("saving"))
    assert pair.finish() == [0, 0], pair.text()
    return pair


@pytest.fixture(scope="module")
def undisturbed(saving: Pair) -> Left:
    return left(saving.folder)


@pytest.mark.thin(3)
def test_a_run_that_saves_at_every_step_trains_what_one_trains_that_does_not(
    tmp_path: Path, begin: Begin, saving: Pair, undisturbed: Left
) -> None:
    """Up to the early stop, which comes at the same step; then the best step's adapter is exported, not the last's."""
    without = finished(begin(tmp_path, saves=False))
    assert undisturbed.losses == without.losses
    assert undisturbed.evaluations == without.evaluations
    assert undisturbed.ended == without.ended == "early stop"
    last = undisturbed.last_step
    assert undisturbed.best_step < last < STEPS
    assert checkpointed(saving.folder, last) == without.adapter
    assert checkpointed(saving.folder, undisturbed.best_step) == undisturbed.adapter != without.adapter


@pytest.mark.thin(3)
def test_a_run_that_is_killed_right_after_a_save_continues_to_the_same_bits(
    tmp_path: Path, begin: Begin, undisturbed: Left
) -> None:
    lost_after_saves(lambda code: begin(tmp_path, code), FIRST_SAVES)
    assert left(tmp_path) == undisturbed


@pytest.mark.full
def test_a_run_that_is_killed_right_after_each_save_continues_to_the_same_bits(
    tmp_path: Path, begin: Begin, undisturbed: Left
) -> None:
    last = undisturbed.last_step
    lost_after_saves(lambda code: begin(tmp_path, code), range(1, last + 1), last=last)
    assert left(tmp_path) == undisturbed


@pytest.mark.full
def test_a_run_that_is_killed_ten_times_at_random_steps_continues_to_the_same_bits(
    tmp_path: Path, begin: Begin
) -> None:
    whole = finished(begin(tmp_path / "whole", is_long=True))
    continued = lost_at_random(
        lambda code: begin(tmp_path / "cut", code, is_long=True), last_step=whole.last_step, code=SLOW
    )
    assert continued == KILLS
    assert left(tmp_path / "cut") == whole
