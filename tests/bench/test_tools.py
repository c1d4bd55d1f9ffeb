"""The rows of made-up functions: the same for a seed, rows of our own formats, held-out values apart."""

from __future__ import annotations

import json
from pathlib import Path

from bench.tools import task
from loradock.data.formats import convert_row, named
from loradock.data.formats.base import Conversation


def test_rows_are_the_same_for_a_seed_and_held_out_ones_ask_for_other_values(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        task.write(tmp_path / folder, train=60, held_out=60)
    texts = [(tmp_path / folder / "rows.jsonl").read_text("utf-8") for folder in ("one", "two")]
    assert texts[0] == texts[1]
    unseen = {*task.CITIES[-task.HELD_OUT :], *task.NAMES[-task.HELD_OUT :], *task.THINGS[-task.HELD_OUT :]}
    asked: dict[str, set[str]] = {}
    for name in ("rows", "held_out"):
        lines = (tmp_path / "one" / f"{name}.jsonl").read_text("utf-8").splitlines()
        samples = [convert_row(named("messages"), {}, json.loads(line)) for line in lines]
        assert all(isinstance(sample, Conversation) and sample.tools for sample in samples)
        calls = [call for each in samples if isinstance(each, Conversation) for call in each.messages[-1].calls]
        assert {call.name for call in calls} == {*task.FUNCTIONS}
        asked[name] = {str(value) for call in calls for value in call.arguments.values()}
    assert not asked["rows"] & unseen
    assert asked["held_out"] & unseen
