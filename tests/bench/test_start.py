"""`bench.start`: a start of the real command is timed to its first step, and the table has the medians."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.start.__main__ import OURS, started, table


def test_the_table_has_the_median_of_each_side() -> None:
    runs = [{"first_step_seconds": s, "cpu_seconds": 2 * s, "env_check_seconds": s / 2} for s in (4.0, 30.0, 6.0)]
    assert "| now, second start | 6.0 | 12.0 | 3.0 |" in table({"now, second start": runs}, load=0.5)


@pytest.mark.full
def test_a_start_is_timed_to_its_first_step(tmp_path: Path) -> None:
    side = started(OURS, tmp_path / "run", cache=tmp_path / "cache")
    assert side["env_check_seconds"] < side["first_step_seconds"] < 600
    assert side["cpu_seconds"] > 1
