"""A profile of a real run: the steps that count, the files that are kept, and an engine that is left as it was."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from facts.recorded import planned
from whole_runs import Silent

from loradock.analysis.profile import ranges
from loradock.analysis.profile.profile import profile, shortened
from loradock.analysis.profile.recorder import Recorder, Window
from loradock.config.load import load
from loradock.errors import Interrupted, Stopped
from loradock.machine import Host, probe
from loradock.training.events import StepDone
from loradock.training.loop import Loop

WINDOW = Window(warmup_steps=2, steps=8)


@pytest.mark.parametrize("steps", [8, 9, 12, 40, 100])
def test_steps_with_and_without_the_profiler_are_told_apart(steps: int) -> None:
    window = Window(warmup_steps=3, steps=steps)
    clean = [step for step in range(4, window.total + 1) if window.is_clean(step)]
    assert len(clean) == steps - window.recorded - 2
    before, after = [sum(step < window.first for step in clean), sum(step > window.last for step in clean)]
    assert abs(before - after) <= 1
    assert min(before, after) >= 2
    assert window.last < window.total


@pytest.mark.parametrize("engine", ranges.METHODS)
def test_every_method_of_the_table_is_there_and_is_put_back(engine: str) -> None:
    places = [(getattr(importlib.import_module(module), owner), method)
              for module, owner, method, _ in ranges.METHODS[engine]]  # fmt: skip
    before = [cls.__dict__[method] for cls, method in places]
    with ranges.named(engine):
        assert all(cls.__dict__[method] is not real for (cls, method), real in zip(places, before, strict=True))
    assert [cls.__dict__[method] for cls, method in places] == before


def test_a_run_that_ends_while_it_is_recorded_leaves_the_engine_as_it_was() -> None:
    real = Loop.make_step, Loop.next_of
    recorder = Recorder(WINDOW, view=Silent())
    recorder.plan_made = planned()
    for step in range(1, WINDOW.first + 1):
        recorder.event(StepDone(step=step))
    assert Loop.next_of is not real[1]
    recorder.close()
    assert (Loop.make_step, Loop.next_of) == real


def loaded(tmp_path: Path, llama: Path, rows: Path, *settings: str) -> Any:
    overrides = [f"data.cache={tmp_path / 'cache'}", "data.max_length=64", *settings]
    return load(None, overrides=overrides, shortcuts={"--model": str(llama), "--data": [str(rows)]})


def test_what_auto_spreads_over_a_run_comes_last_and_what_was_asked_for_stays(
    llama: Path, rows: Path, tmp_path: Path
) -> None:
    short = shortened(loaded(tmp_path, llama, rows, "checkpoints.every=2", "output=elsewhere"), WINDOW).config
    assert (short.train.max_steps, short.logging.every, short.output) == (WINDOW.total, 1, None)
    assert (short.checkpoints.every, short.evaluation.every) == (2, WINDOW.total)


@pytest.mark.thin(3)
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_profile_accounts_for_the_step_and_keeps_its_files(
    engine: str, llama: Path, rows: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    asked = loaded(
        tmp_path, llama, rows, f"engine={engine}", "train.max_steps=500", "data.validation=8", "train.micro_batch=4",
        "train.packing=false", *(["model.cache_weights=0"] if engine == "fast" else []),
    )  # fmt: skip
    found = profile(asked, facts=probe.gather(Host()), output=output, window=WINDOW, view=Silent())
    assert sorted(file.name for file in output.iterdir()) == ["flame.txt", "trace.json.gz"]
    assert found["files"] == {"trace": str(output / "trace.json.gz"), "flame": str(output / "flame.txt")}
    with gzip.open(output / "trace.json.gz", "rt") as stream:
        assert json.load(stream)["traceEvents"]
    assert all(line.rpartition(" ")[2].isdigit() for line in (output / "flame.txt").read_text().splitlines())
    names = [row["name"] for row in found["timeline"]]
    assert {"data", "forward", "backward", "optimizer", "logging", "evaluation", "saving"} <= set(names)
    assert sum(row["seconds"] for row in found["timeline"]) == pytest.approx(found["step_seconds"])
    shares = {row["name"]: row["share"] for row in found["timeline"]}
    assert shares["forward"] > 0
    assert shares["backward"] > 0
    assert shares["optimizer"] > 0
    assert found["passes"]["count"] == 4
    assert found["steps"] == {"warm_up": 2, "counted": 4, "recorded": 2}
    assert found["run"]["steps"] == 500
    parts = {row["name"]: row["seconds"] for row in found["run"]["parts"]}
    assert list(parts)[-2:] == ["training", "export"]
    assert parts["export"] > 0
    assert sum(parts.values()) == pytest.approx(found["run"]["seconds"])
    roles = {row["name"] for row in found["roles"]}
    assert {"products", "attention", "optimiser", "dequantising"} <= roles
    assert found["busy_share"] is None
    assert 0 < found["rates"]["flops"] < found["rates"]["peak_flops"]
    json.dumps(found, allow_nan=False)


def test_a_signal_ends_a_profile_with_nothing_kept(
    llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(*_: Any, **__: Any) -> None:
        raise Stopped("stopped by SIGTERM; step 3 is committed")

    monkeypatch.setattr("loradock.analysis.profile.profile.run", stopping)
    output = tmp_path / "out"
    output.mkdir()
    with pytest.raises(Interrupted, match="nothing is kept"):
        profile(loaded(tmp_path, llama, rows), facts=probe.gather(Host()), output=output, window=WINDOW, view=Silent())
    assert list(output.iterdir()) == []
