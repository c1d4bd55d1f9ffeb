"""The files of a run directory, as `train` continues them, and as `runs` and `report` show them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.kinds.base import Kind, Mutate
from fuzz.mutate import any_of, in_json_line, of_a_part, of_bytes, of_json, of_text
from proven import OPTION, unchecked
from tiny import make_llama, write_rows

SETTINGS = {
    "data.cache": "cache",
    "data.max_length": 64,
    "device": "cpu",
    "engine": "peft",
    "checkpoints.every": 2,
    "checkpoints.keep": 3,
    "logging.every": 1,
    "lora.rank": 2,
    "train.global_batch": 4,
    "train.max_steps": 4,
}
PATHS = ("--model", "model", "--data", "rows.jsonl", "--output", "run")
SETS = tuple(word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}"))
SAME = ("train", *PATHS, *SETS, OPTION)
RESUME = ("train", "--resume", "--output", "run", OPTION)
RUNS = ("runs", ".")
REPORT = ("report", "run", "--output", "report.html")
SPOILT = any_of(of_a_part, of_a_part, of_a_part, of_json, of_bytes)
SPOILT_LINES = any_of(in_json_line, in_json_line, of_text, of_bytes)
EXPORTED_AGAIN_SECONDS = 10.0
"""A finished run is answered at once; one whose adapter is not what its record says is prepared and exported again."""
LIKE_A_RUN, LIKE_A_CONTINUED_RUN = 0.2, 0.1


def make(folder: Path) -> None:
    """A finished run of four steps, in a folder that is the working directory of every command."""
    os.chdir(folder)
    make_llama(folder / "model")
    write_rows(folder / "rows.jsonl", rows=16)
    ran(*SAME[:-1], unchecked("thousands of runs on this machine"))
    shutil.copytree(folder / "run", folder / "runs" / "other")  # what is spoilt is listed beside one that is not
    (folder / "run" / "monitor.jsonl").write_text(samples(), encoding="utf-8")
    score = {"rows": 9, "value": 0.5, "low": 0.4, "high": 0.6}
    against = {"tasks": {"boolq": {"difference": {"difference": 0.1, "p": 0.01}}}}
    scores = {"tasks": [{"task": "boolq", "metric": "accuracy", "score": score}], "against": against}
    (folder / "run" / "evaluations").mkdir()
    (folder / "run" / "evaluations" / "results.json").write_text(json.dumps(scores), encoding="utf-8")


def ran(*command: str) -> None:
    """In this process, what `loradock COMMAND` does; it has to end well."""
    from loradock import cli

    sys.argv = ["loradock", *command]
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code, end.value.code


def make_unfinished(folder: Path) -> None:
    """The run as a kill after its second step leaves it."""
    make(folder)
    run = folder / "run"
    shutil.rmtree(run / "adapter")
    shutil.rmtree(run / "checkpoints" / "checkpoint-4")
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}, indent=2), encoding="utf-8")


def samples() -> str:
    """Lines as the monitor writes them."""
    seen = {"step": 1, "rss_bytes": 1 << 28, "card_used_bytes": 1 << 30, "slowdowns": ["power"], "data_share": 0.1}
    lines = [{"time": f"2026-01-01T00:00:0{second}.000+00:00", **seen} for second in range(6)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def of_run(
    name: str,
    file: str,
    mutate: Mutate,
    command: tuple[str, ...],
    *,
    share: float = 1.0,
    made: Callable[[Path], None] = make,
) -> Kind:
    """A kind of file in the run directory."""
    spare = EXPORTED_AGAIN_SECONDS if made is make and command in (SAME, RESUME) else 0.0
    place = f"run/{file}"
    return Kind(name=name, make=made, file=place, mutate=mutate, command=command, share=share, spare_cpu_seconds=spare)


RUN_DIRECTORY = (
    of_run("run.json, same command", "run.json", SPOILT, SAME, share=LIKE_A_RUN),
    of_run("run.json, --resume", "run.json", SPOILT, RESUME, share=LIKE_A_RUN),
    of_run("run.json, continued", "run.json", SPOILT, SAME, share=LIKE_A_CONTINUED_RUN, made=make_unfinished),
    of_run("run.json, runs", "run.json", SPOILT, RUNS),
    of_run("run.json, report", "run.json", SPOILT, REPORT),
    of_run(
        "metrics.jsonl, continued",
        "metrics.jsonl",
        SPOILT_LINES,
        SAME,
        share=LIKE_A_CONTINUED_RUN,
        made=make_unfinished,
    ),
    of_run("metrics.jsonl, runs", "metrics.jsonl", SPOILT_LINES, RUNS, share=0.5),
    of_run("metrics.jsonl, report", "metrics.jsonl", SPOILT_LINES, REPORT),
    of_run("status.json, runs", "status.json", SPOILT, RUNS, share=0.5),
    of_run("status.json, report", "status.json", SPOILT, REPORT, share=0.5),
    of_run("monitor.jsonl, report", "monitor.jsonl", SPOILT_LINES, REPORT, share=0.5),
    of_run("results.json, report", "evaluations/results.json", SPOILT, REPORT, share=0.5),
    of_run("the lock's line", ".lock", any_of(of_json, of_bytes), SAME, share=0.05, made=make_unfinished),
)
