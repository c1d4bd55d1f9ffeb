"""What is read of a run, and what a child is made to do."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from analysis.diagnose.made import measured
from jobs import job_of

from loradock.analysis.diagnose.attempt import Task, shortened
from loradock.analysis.diagnose.children import Answer, failed, run
from loradock.analysis.diagnose.measure import Failed, as_dict, from_dict, mean, read
from loradock.config.load import load
from loradock.training import batches

CADENCE = {"log": 10, "evaluate": 0, "save": 4}


def line(step: int, seconds: float, **phases: float) -> dict[str, Any]:
    return {
        "kind": "train", "step": step, "seconds": seconds, "tokens": 90, "samples_per_second": 4 / seconds,
        "padding_share": 0.1, "loss": 3.0 - step / 10, "memory_bytes": step, "phases": {"passes": seconds, **phases},
    }  # fmt: skip


def write(directory: Path, *lines: dict[str, Any], samples: tuple[dict[str, Any], ...] = ()) -> Path:
    for name, content in {"metrics.jsonl": lines, "monitor.jsonl": samples}.items():
        (directory / name).write_text("".join(json.dumps(each) + "\n" for each in content))
    return directory


def test_a_run_is_read_without_its_warm_up_and_with_what_comes_between_steps(tmp_path: Path) -> None:
    steps = [line(1, 9.0), line(2, 1.0, logging=0.5), line(3, 2.0, logging=0.7)]
    save = {"kind": "checkpoint", "step": 3, "seconds": 2.0}
    samples = ({"step": None, "utilization": 0.0}, {"step": 2, "utilization": 0.5}, {"step": 3, "utilization": 0.7})
    found = read(write(tmp_path, *steps, save, samples=samples), cadence=CADENCE, warmup_steps=1, event_seconds={})
    assert found["phases"] == pytest.approx(
        {"data": 0, "passes": 1.5, "optimizer": 0, "other": 0, "logging": 0.06, "evaluation": 0, "saving": 0.5}
    )
    assert (found["tokens"], found["samples"], found["steps"]) == (90, 4, 2)
    assert found["padding_share"] == pytest.approx(0.1)
    assert found["busy_share"] == pytest.approx(0.6)
    assert (found["loss"], found["memory_bytes"]) == (2.7, 3)
    assert found["event_seconds"] == {"evaluation": 0, "saving": 2.0}


def test_events_that_were_not_waited_for_are_those_of_the_baseline(tmp_path: Path) -> None:
    directory = write(tmp_path, line(1, 1.0), line(2, 1.0))
    found = read(directory, cadence=CADENCE, warmup_steps=1, event_seconds={"saving": 8.0})
    assert found["phases"]["saving"] == 2.0
    assert found["busy_share"] is None
    with pytest.raises(ValueError, match="no step was measured"):
        read(directory, cadence=CADENCE, warmup_steps=5, event_seconds={})


def test_outcomes_are_kept_as_json_and_averaged() -> None:
    first, second = measured(), measured(times=2.0, memory_bytes=5, busy_share=0.5)
    for outcome in (first, Failed(kind="failed", words="why", exit_code=70)):
        assert from_dict(json.loads(json.dumps(as_dict(outcome)))) == outcome
    both = mean([first, second])
    assert both.seconds == pytest.approx(1.5 * first.seconds)
    assert (both.memory_bytes, both.busy_share) == (first.memory_bytes, 0.5)


def test_a_child_makes_the_steps_of_its_task_and_no_more_than_is_waited_for() -> None:
    settings = ["checkpoints.every=3", "evaluation.every=2", "train.early_stopping=3", "data.validation=0.1"]
    config = load(None, overrides=settings, shortcuts={"--model": "m", "--data": ["d"]}).config
    short = shortened(config, Task(steps=20, warmup_steps=3))
    assert (short.train.max_steps, short.train.early_stopping, short.logging.every) == (23, None, 1)
    assert (short.checkpoints.every, short.evaluation.every) == (3, 2)
    short = shortened(config, Task(steps=20, warmup_steps=3, waits_for=()))
    assert (short.checkpoints.every, short.evaluation.every) == (23, 23)


@pytest.mark.parametrize(
    ("code", "log", "kind", "words"),
    [
        (80, "Traceback\nerror: the GPU is full\nhint: x", "out of memory", "the GPU is full"),
        (-11, "step 3\n", "failed", "ended by SIGSEGV: step 3"),
        (-9, "", "out of memory", "killed, probably out of memory: ended by SIGKILL: no output"),
        (70, "MemoryError\nerror: unexpected MemoryError: ", "out of memory", "unexpected MemoryError:"),
        (78, "error: the configuration has a problem", "failed", "the configuration has a problem"),
    ],
)
def test_how_a_child_ended_is_told_in_its_words(code: int, log: str, kind: str, words: str) -> None:
    found = failed(code, log)
    assert (found.kind, found.words, found.exit_code) == (kind, words, code)


def test_a_child_answers_fails_or_is_ended_at_its_limit(tmp_path: Path) -> None:
    def in_folder(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    answer = run(os.getpid, folder=in_folder("a"), limit_seconds=60)
    assert isinstance(answer, Answer)
    assert answer.value != os.getpid()
    assert answer.peak_bytes > 1 << 20
    broken = run(lambda: 1 / 0, folder=in_folder("b"), limit_seconds=60)
    assert isinstance(broken, Failed)
    assert broken.words == "unexpected ZeroDivisionError: division by zero"
    slow = run(lambda: time.sleep(600), folder=in_folder("c"), limit_seconds=0.1)
    assert isinstance(slow, Failed)
    assert slow.kind == "too slow"


def test_with_repeat_first_the_loader_reads_one_step_and_every_step_trains_on_it(
    llama: Path, rows: Path, tmp_path: Path
) -> None:
    job = job_of(tmp_path, "train.max_steps=4", "data.repeat_first=true", model=llama, data=rows)
    read_steps: list[int] = []

    class Steps:
        def __len__(self) -> int:
            return len(job.steps)

        def __getitem__(self, index: int) -> Any:
            read_steps.append(index)
            return job.steps[index]

    items = list(batches.step_loader(dataclasses.replace(job, steps=Steps()), lambda batch: (batch, 1)))
    assert read_steps == [0]
    assert len(items) == 4
    assert all(item is items[0] for item in items)
