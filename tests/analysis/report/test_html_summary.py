"""What a report says of a run in words: how long it took, what the loss came to, which checkpoints are left."""

from __future__ import annotations

from pathlib import Path

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
    told = "2 min 17 s, 17.0 s of training, 96.6 s of the environment check"
    assert dict(sections.summary(run))["Duration"] == told
    (bar,) = bars.stages([run])
    assert bar.total == "2 min 17 s in all"
    parts = {part.name: part.text for part in bar.parts}
    assert (parts["env-check"], parts["training"]) == ("96.6 s", "17.0 s")
    assert sum(part.width for part in bar.parts) == pytest.approx(100)


def test_a_run_whose_environment_was_not_checked_has_no_such_stage(tmp_path: Path) -> None:
    skipped = {"skipped": "--skip-env-check"}
    directory = made_run(
        tmp_path / "run", change={"env_check": skipped, "timings_seconds": {"total": 9, "training": 5}}
    )
    (run,) = read([directory])
    assert dict(sections.summary(run))["Duration"] == "9.00 s, 5.00 s of training"


def test_the_checkpoints_that_are_left_are_named_by_step(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    assert dict(sections.summary(*read([directory])))["Checkpoints"] == "1 written; none is left"
    for name in ("checkpoint-100", "checkpoint-40", "checkpoint-40.damaged", ".staged"):
        (directory / "checkpoints" / name).mkdir(parents=True)
    told = dict(sections.summary(*read([directory])))["Checkpoints"]
    assert told == "1 written; left: checkpoint-40, checkpoint-100"


def test_samples_of_a_run_of_seconds_are_drawn_over_seconds(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    times = [BEGAN, BEGAN.replace("12:00:00", "12:00:16")]
    write_lines(directory / "monitor.jsonl", [{"time": time, "rss_bytes": 1 << 30} for time in times])
    (chart,) = [each for each in charts(read([directory])) if each.kind.name == "rss"]
    assert (chart.x_name, chart.x_bounds) == ("second", (0.0, 16.0))
