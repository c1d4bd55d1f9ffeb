"""Under ZeRO-2 and ZeRO-3 a save changes nothing of what is trained, and a run that is killed loses nothing.

As of the other modes in tests/faults/test_losing.py, with DeepSpeed itself in two processes (gloo on the CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine.trl.conftest import DROPOUT, SLOW, Group, Start
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

pytestmark = pytest.mark.full

Begin = Callable[..., Group]


@pytest.fixture(scope="module", params=[2, 3])
def begin(request: pytest.FixtureRequest, start: Start, tmp_path_factory: pytest.TempPathFactory) -> Begin:
    validation = write_contradicting_rows(tmp_path_factory.mktemp("validation") / "rows.jsonl")

    def beginning(folder: Path, code: str = "", **shape: bool) -> Group:
        return start(folder, DROPOUT, *settings(validation, **shape), stage=request.param, code=code)

    return beginning


def finished(group: Group) -> Left:
    assert group.finish() == [0, 0], group.text()
    return left(group.folder)


def test_saves_and_kills_at_them_change_no_loss_and_no_weight(tmp_path: Path, begin: Begin) -> None:
    without = finished(begin(tmp_path / "without", saves=False))
    saving = finished(begin(tmp_path / "saving"))
    assert saving.losses == without.losses
    assert saving.evaluations == without.evaluations
    assert saving.ended == without.ended == "early stop"
    assert saving.best_step < saving.last_step
    assert checkpointed(tmp_path / "saving", saving.last_step) == without.adapter
    assert checkpointed(tmp_path / "saving", saving.best_step) == saving.adapter != without.adapter
    lost_after_saves(lambda code: begin(tmp_path / "killed", code), FIRST_SAVES)
    assert left(tmp_path / "killed") == saving


def test_a_run_that_is_killed_ten_times_at_random_steps_continues_to_the_same_bits(
    tmp_path: Path, begin: Begin
) -> None:
    whole = finished(begin(tmp_path / "whole", is_long=True))
    assert whole.ended == "early stop"
    continued = lost_at_random(
        lambda code: begin(tmp_path / "cut", code, is_long=True), last_step=whole.last_step, code=SLOW
    )
    assert continued == KILLS
    assert left(tmp_path / "cut") == whole
