"""Under ZeRO-2 and ZeRO-3 a save changes nothing of what is trained, and a run that is killed loses nothing.

As of the other modes in tests/faults/test_losing.py, with DeepSpeed itself in two forked processes (gloo on the CPU).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
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
from faults.pairs import SLOW, Pair, arguments, begun
from training.backends.zero.conftest import ALL_CUT, LIMIT_SECONDS

pytestmark = pytest.mark.full

Begin = Callable[..., Pair]


@pytest.fixture(scope="module")
def forking_with_deepspeed(layer: str) -> Iterator[Forking]:
    parent = Forking(*filter(None, [layer]))
    yield parent
    parent.end()


@pytest.fixture(scope="module", params=[2, 3])
def begin(
    request: pytest.FixtureRequest,
    forking_with_deepspeed: Forking,
    llama: Path,
    rows: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Begin:
    folder = tmp_path_factory.mktemp("settings")
    validation, own = write_contradicting_rows(folder / "rows.jsonl"), folder / "zero.json"
    own.write_text(json.dumps(ALL_CUT), encoding="utf-8")
    compiled = os.environ.get("TORCH_EXTENSIONS_DIR") or str(tmp_path_factory.mktemp("operations"))
    mode = (f"train.parallel=zero{request.param}", f"train.deepspeed={own}")

    def beginning(folder: Path, code: str = "", **shape: bool) -> Pair:
        words = arguments(llama, rows, *mode, *settings(validation, **shape), engine="zero")
        return begun(forking_with_deepspeed, folder, words, code=code, TORCH_EXTENSIONS_DIR=compiled)

    return beginning


def finished(pair: Pair) -> Left:
    """The first one also compiles what DeepSpeed exchanges by."""
    assert pair.finish(seconds=LIMIT_SECONDS) == [0, 0], pair.text()
    return left(pair.folder)


@pytest.mark.thin(6)
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


@pytest.mark.thin(6)
def test_a_run_that_is_killed_ten_times_at_random_steps_continues_to_the_same_bits(
    tmp_path: Path, begin: Begin
) -> None:
    whole = finished(begin(tmp_path / "whole", is_long=True))
    continued = lost_at_random(
        lambda code: begin(tmp_path / "cut", code, is_long=True), last_step=whole.last_step, code=SLOW
    )
    assert continued == KILLS
    assert left(tmp_path / "cut") == whole
