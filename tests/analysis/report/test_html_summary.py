"""What a report says of a run in words: how long it took, what the loss came to, which checkpoints are left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from analysis.report.made_runs import BEGAN, made_run, write_lines

from loradock.analysis.report.html import bars, sections
from loradock.analysis.report.html.charts import charts
from loradock.analysis.report.html.runs import read

CHECK = {"level": "compute", "seconds": 96.6, "findings": []}


@pytest.mark.parametrize(
    "taken",
    [
        {"start": 5.0, "env-check": 96.6, "training": 17.0, "total": 137.2},
        pytest.param({"training": 17.0, "total": 40.6}, id="a record that does not count its environment check"),
    ],
)
def test_the_duration_is_the_whole_time_and_the_environment_check_is_a_stage(
    taken: dict[str, float], tmp_path: Path
) -> None:
    directory = made_run(tmp_path / "run", change={"timings_seconds": taken, "env_check": CHECK})
    (run,) = read([directory])
    told = "2.29 min, 17 s of training, 96.6 s of the environment check"
    assert dict(sections.summary(run))["Duration"] == told
    (bar,) = bars.stages([run])
    assert bar.total == "2.29 min in all"
    parts = {part.name: part.text for part in bar.parts}
    assert (parts["env-check"], parts["training"]) == ("96.6 s", "17 s")
    assert sum(part.width for part in bar.parts) == pytest.approx(100)


def test_a_run_whose_environment_was_not_checked_has_no_such_stage(tmp_path: Path) -> None:
    skipped = {"skipped": "--skip-env-check"}
    directory = made_run(
        tmp_path / "run", change={"env_check": skipped, "timings_seconds": {"total": 9, "training": 5}}
    )
    (run,) = read([directory])
    assert dict(sections.summary(run))["Duration"] == "9 s, 5 s of training"


def test_the_checkpoints_that_are_left_are_named_by_step(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    assert dict(sections.summary(*read([directory])))["Checkpoints"] == "1 written; none is left"
    for name in ("checkpoint-100", "checkpoint-40", "checkpoint-40.damaged", ".staged"):
        (directory / "checkpoints" / name).mkdir(parents=True)
    told = dict(sections.summary(*read([directory])))["Checkpoints"]
    assert told == "1 written; left: checkpoint-40, checkpoint-100"


def test_what_evaluate_found_last_is_told_with_its_interval(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    assert not [name for name, _ in sections.summary(*read([directory])) if name.startswith("Evaluated")]
    scores: dict[str, Any] = {
        "tasks": [
            {
                "task": "boolq",
                "metric": "accuracy",
                "score": {"rows": 200, "value": 0.635, "low": 0.566, "high": 0.698},
            },
            {"task": "rows.jsonl", "metric": "loss", "score": {"rows": 9, "value": 1.25, "low": 1.1, "high": 1.4}},
            {"task": "damaged", "metric": "accuracy", "score": 3},
        ],
        "against": {"tasks": {"boolq": {"difference": {"difference": 0.235, "p": 0.00012}}}},
    }
    (directory / "evaluations").mkdir()
    (directory / "evaluations" / "results.json").write_text(json.dumps(scores), encoding="utf-8")
    told = dict(sections.summary(*read([directory])))
    gained = "; +23.5 points against the other model, p 0.00012"
    assert told["Evaluated on boolq"] == f"accuracy 63.5 % (56.6 % to 69.8 %) of 200 rows{gained}"
    assert told["Evaluated on rows.jsonl"] == "loss 1.2500 (1.1000 to 1.4000) of 9 rows"
    assert "Evaluated on damaged" not in told


def test_samples_of_a_run_of_seconds_are_drawn_over_seconds(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    times = [BEGAN, BEGAN.replace("12:00:00", "12:00:16")]
    write_lines(directory / "monitor.jsonl", [{"time": time, "rss_bytes": 1 << 30} for time in times])
    (chart,) = [each for each in charts(read([directory])) if each.kind.name == "rss"]
    assert (chart.x_name, chart.x_bounds) == ("second", (0.0, 16.0))
