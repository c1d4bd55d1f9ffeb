"""A comparison names what differed, all of it and nothing else, and what that did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from analysis.report.made_runs import eval_line, made_run, rewrite, step_line, write_lines

from loradock.analysis.report.html import sections
from loradock.analysis.report.html.differences import ABSENT, differences, leaves, outcomes
from loradock.analysis.report.html.runs import Run, read


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    return [made_run(tmp_path / "first"), made_run(tmp_path / "second")]


def changed(directory: Path, *path: str, to: Any) -> None:
    """Another value somewhere in run.json."""
    record = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    rewrite(directory, **record)


def named(runs: list[Run]) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(each.group, each.name): each.values for each in differences(runs)}


def test_two_runs_of_the_same_differ_in_nothing(two: list[Path]) -> None:
    assert differences(read(two)) == []


def test_every_group_names_its_difference_with_the_value_of_each_run(two: list[Path]) -> None:
    second = two[1]
    changed(second, "config", "train", "learning_rate", to=1e-3)
    changed(second, "facts", "packages", "torch", to="2.11.0")
    changed(second, "facts", "driver", to="600.1")
    changed(second, "data", "sources", to=[{"path": "rows.jsonl", "sha256": "cd" * 32}])
    record = json.loads((second / "run.json").read_text(encoding="utf-8"))
    for decision in record["plan"]["decisions"]:
        if decision["name"] == "micro_batch":
            decision["value"] = 77
    rewrite(second, plan=record["plan"])
    found = named(read(two))
    assert found[("configuration", "train.learning_rate")][1] == "0.001"
    assert found[("versions", "torch")] == ("2.10.0", "2.11.0")
    assert found[("machine", "driver")][1] == "600.1"
    assert found[("base and data", "source 0 sha256")] == ("ab" * 6, "cd" * 6)
    assert found[("plan", "micro_batch")][1] == "77"
    assert len(found) == 5


def test_what_only_one_run_has_is_a_difference(two: list[Path]) -> None:
    changed(two[1], "facts", "packages", "flash-attn", to="2.8.3")
    assert named(read(two)) == {("versions", "flash-attn"): (ABSENT, "2.8.3")}


def test_the_name_and_the_output_of_a_run_are_no_difference(two: list[Path]) -> None:
    changed(two[1], "config", "name", to="other")
    changed(two[1], "config", "output", to="runs/other")
    assert differences(read(two)) == []


def test_a_run_without_config_and_facts_can_be_compared(two: list[Path]) -> None:
    rewrite(two[1], config=None, facts=None, plan=None, data=None, base=None)
    assert ("configuration", "lora.rank") in named(read(two))


def test_leaves_of_nested_objects_and_lists_have_dotted_names() -> None:
    content = {"a": {"b": 1, "c": {}}, "sources": [{"path": "x"}, {"path": "y"}], "words": ["p", "q"]}
    assert dict(leaves(content)) == {
        "a.b": 1,
        "a.c": {},
        "sources.0.path": "x",
        "sources.1.path": "y",
        "words": ["p", "q"],
    }


def test_outcomes_hold_each_run_against_the_first(two: list[Path]) -> None:
    slow = [step_line(step, loss=3.0 - step, seconds=1.0, tokens=500, memory_bytes=5 << 30) for step in (1, 2)]
    write_lines(two[1] / "metrics.jsonl", slow)
    found = {each.name: each for each in outcomes(read(two))}
    speed = found["real tokens a second of training"]
    assert speed.values == ("2,000", "500")
    assert speed.ratios == ("1.00x", "0.25x")
    assert found["peak GPU memory"].ratios == ("1.00x", "0.25x")
    assert found["training loss, last steps"].values[1] == "1.0000"
    assert found["evaluation loss, last"].values == ("1.2500", ABSENT)
    assert found["steps"].values == ("40", "2")


def test_the_lowest_loss_is_not_the_last(two: list[Path]) -> None:
    write_lines(two[1] / "metrics.jsonl", [eval_line(step, loss=loss) for step, loss in ((1, 2.0), (2, 0.5), (3, 0.7))])
    found = {each.name: each.values[1] for each in outcomes(read(two))}
    assert (found["evaluation loss, last"], found["evaluation loss, lowest"]) == ("0.7000", "0.5000")


def test_runs_with_metric_lines_at_another_cadence_have_the_same_loss_and_no_single_step_speaks(
    two: list[Path],
) -> None:
    losses = [3.0 - step / 100 + (0.5 if step % 2 else -0.5) for step in range(1, 61)]
    write_lines(two[0] / "metrics.jsonl", [step_line(step, loss=loss) for step, loss in enumerate(losses, 1)])
    tens = [step_line(step, loss=sum(losses[step - 10 : step]) / 10) for step in range(10, 61, 10)]
    write_lines(two[1] / "metrics.jsonl", tens)
    found = {each.name: each.values for each in outcomes(read(two))}
    assert found["training loss, last steps"] == ("2.4450", "2.4450")
    for run in read(two):
        told = dict(sections.summary(run))["Training loss"]
        assert told == "2.9450 over the first 10 steps, 2.4450 over the last 10 steps"


def test_whether_the_environment_was_checked_is_a_difference(two: list[Path]) -> None:
    rewrite(two[0], env_check={"level": "compute", "seconds": 9.0})
    rewrite(two[1], env_check={"skipped": "--skip-env-check"})
    assert [(each.name, each.values) for each in differences(read(two))] == [
        ("env-check", ("compute", "--skip-env-check"))
    ]


def test_a_run_that_failed_before_its_first_step_has_no_figures_but_an_end(two: list[Path]) -> None:
    (two[1] / "metrics.jsonl").unlink()
    rewrite(two[1], status="failed", timings_seconds={})
    found = {each.name: each.values[1] for each in outcomes(read(two))}
    assert found.pop("how it ended") == "failed"
    assert set(found.values()) == {ABSENT}
