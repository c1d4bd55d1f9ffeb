"""A run of several parts: what changed on the way is named, and one repeat goes no further than it can be the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loradock.analysis.reproduce.attempts import first_micro_batch, turns
from loradock.analysis.reproduce.original import Original
from loradock.commands.reproduce import steps_to_repeat
from loradock.config.schema import RunConfig
from loradock.errors import UsageError


def planned(micro_batch: int, *, cpus: int = 2) -> dict[str, Any]:
    decisions = [{"name": "micro_batch", "value": micro_batch}, {"name": "device", "value": "cpu"}]
    return {"plan": {"decisions": decisions}, "facts": {"cpus": cpus}, "outcome": {"steps": 20}, "code_sha256": "a"}


def part(step: int | None, **more: Any) -> dict[str, Any]:
    return {"resumed_from": f"checkpoint-{step}" if step else None, **more}


def made(micro_batch: str = "4", cpus: str = "2") -> dict[str, str]:
    return {"loradock's code": "a", "micro-batch": micro_batch, "CPUs": cpus}


def steps_of(record: dict[str, Any], *, steps: int | None = None, whole: bool = False) -> int | None:
    lines = [{"step": step} for step in range(1, 21)]
    original = Original(directory=Path("run"), record=record, config=RunConfig(), train=lines, evaluations=[])
    return steps_to_repeat(original, steps=steps, whole=whole)


def shrunk(step: int, before: int, value: int) -> dict[str, Any]:
    return {"step": step, "decision": "micro_batch", "before": before, "value": value, "why": "CUDA out of memory"}


def test_a_run_of_one_part_and_one_that_was_continued_as_it_was_have_no_turn() -> None:
    assert turns(planned(4)) == []
    record = {**planned(4), **part(10), "attempts": [part(None, made_with=made())]}
    assert turns(record) == []
    assert steps_of(record, whole=True) is None
    older = {**planned(4), **part(10), "attempts": [part(None)]}  # records of before had no `made_with`
    assert turns(older) == []


def test_another_machine_on_the_way_bounds_the_repeat() -> None:
    record = {**planned(4, cpus=8), **part(10), "attempts": [part(None, made_with=made(micro_batch="2"))]}
    assert [(turn.step, turn.name, turn.was, turn.now) for turn in turns(record)] == [
        (10, "CPUs", "2", "8"),
        (10, "micro-batch", "2", "4"),
    ]
    assert {turn.difference.changes for turn in turns(record)} == {"last bits"}
    assert first_micro_batch(record) == 2
    assert steps_of(record, steps=10) == 10
    assert steps_of(record) == 10
    with pytest.raises(UsageError, match="from step 11 on the run had CPUs 8, and 2 before") as caught:
        steps_of(record, whole=True)
    assert caught.value.hint == "--steps 10"


def test_an_attempt_whose_steps_were_made_again_counts_for_nothing() -> None:
    lost = part(10, made_with=made(cpus="64"))
    record = {**planned(4), **part(10), "attempts": [part(None, made_with=made()), lost]}
    assert turns(record) == []
    fresh = {**planned(4), **part(None), "attempts": [part(None, made_with=made(cpus="64"))]}
    assert turns(fresh) == []


def test_settings_that_changed_on_the_way_are_told_and_not_repeated() -> None:
    changed = {"train.learning_rate": {"was": "0.1", "now": "0.2"}, "versions.torch": {"was": "2.9", "now": "2.10"}}
    record = {**planned(4), **part(5, allowed_changes=changed), "attempts": [part(None, made_with=made())]}
    lines = [turn.difference.line for turn in turns(record)]
    assert lines[0] == "train.learning_rate from step 6: 0.1 -> 0.2 (may change results)"
    assert lines[1] == "versions.torch from step 6: 2.9 -> 2.10 (may change results)"
    with pytest.raises(UsageError, match="no one configuration makes it again"):
        steps_of(record)


def test_a_run_that_took_a_smaller_micro_batch_is_repeated_up_to_there_or_with_it() -> None:
    later = {**planned(4), "shrunk": [shrunk(5, 4, 2)]}
    assert first_micro_batch(later) == 4
    assert steps_of(later) == 5
    with pytest.raises(UsageError, match="CUDA out of memory"):
        steps_of(later, steps=6)
    at_once = {**planned(4), "shrunk": [shrunk(0, 4, 2), shrunk(0, 2, 1)]}
    assert first_micro_batch(at_once) == 1
    assert steps_of(at_once, whole=True) is None
