"""Samples come while a run trains, are never in its way, and end with it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from whole_runs import Silent, train

from loradock.errors import StorageError
from loradock.machine import Host
from loradock.machine.gpu_sample import GpuSampler
from loradock.training.batches import StepItems
from loradock.training.observers.monitoring import monitor, sampler
from loradock.training.observers.monitoring.alerts import Alert
from loradock.training.observers.monitoring.process import ProcessReader
from loradock.training.observers.monitoring.sampler import Sampler

pytestmark = pytest.mark.thin(4)

QUICK = "logging.monitor_seconds=0.02"


def written(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / sampler.FILE).read_text().splitlines()]


def started(directory: Path, *sources: Any, closed: Any = lambda: None) -> Sampler:
    made = Sampler(directory, every_seconds=0.001, open_sources=lambda: (list(sources), closed))
    made.start()
    return made


def wait_for(condition: Any, *, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_run_leaves_samples_with_its_step_and_what_the_process_takes(llama: Path, rows: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", "train.max_steps=20", QUICK, model=llama, data=rows)
    lines = written(result.directory)
    assert {"time", "step", "data_share", "cpu_share", "machine_cpu_share", "rss_bytes"} <= lines[-1].keys()
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert lines[-1]["rss_bytes"] > 50 << 20
    assert not [each for each in threading.enumerate() if each.name == "monitor"]


def test_nothing_is_sampled_where_it_is_switched_off(llama: Path, rows: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", "train.max_steps=2", "logging.monitor_seconds=0", model=llama, data=rows)
    assert not (result.directory / sampler.FILE).exists()


def test_the_samples_end_with_a_run_that_fails(
    llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, index: int) -> Any:
        time.sleep(0.1)
        raise OSError("the data are gone")

    monkeypatch.setattr(StepItems, "__getitem__", fail)
    with pytest.raises(StorageError):
        train(tmp_path / "run", "train.max_steps=2", QUICK, model=llama, data=rows)
    assert not [each for each in threading.enumerate() if each.name == "monitor"]


def test_what_goes_wrong_in_the_sampler_is_one_note_and_the_run_goes_on(
    llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: ProcessReader) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(ProcessReader, "sample", broken)
    view = Silent()
    result = train(tmp_path / "run", "train.max_steps=20", QUICK, model=llama, data=rows, view=view)
    assert result.outcome.steps == 20
    assert [text for text in view.stages if "monitoring ended" in text] == [
        "warning: monitoring ended: RuntimeError: no such thing"
    ]


def test_alerts_are_told_once_each_and_recorded(
    llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alert = Alert(name="made-up", what="something is wrong", remedy="mend it")
    monkeypatch.setattr(monitor.alerts, "found", lambda lines, _, **__: [alert] if lines else [])
    monkeypatch.setattr(monitor, "LOOK_SECONDS", 0.0)
    view = Silent()
    result = train(tmp_path / "run", "train.max_steps=4", model=llama, data=rows, view=view)
    assert view.stages.count("alert: something is wrong (to try: mend it)") == 1
    assert json.loads((result.directory / "run.json").read_text())["alerts"] == [
        {"name": "made-up", "what": "something is wrong", "remedy": "mend it", "step": 1}
    ]


def test_a_continued_run_keeps_what_was_told_and_tells_only_what_is_new(
    llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [Alert(name="made-up", what="something is wrong", remedy="mend it")]
    monkeypatch.setattr(monitor.alerts, "found", lambda lines, _, **__: list(made) if lines else [])
    monkeypatch.setattr(monitor, "LOOK_SECONDS", 0.0)
    settings = ("train.max_steps=4", "checkpoints.every=1")

    def fail(self: Any, index: int) -> Any:
        if index == 2:
            raise OSError("the data are gone")
        return get(self, index)

    get = StepItems.__getitem__
    with monkeypatch.context() as patch:
        patch.setattr(StepItems, "__getitem__", fail)
        with pytest.raises(StorageError):
            train(tmp_path / "run", *settings, model=llama, data=rows)
    made.append(Alert(name="new", what="something else", remedy="mend that"))
    view = Silent()
    result = train(tmp_path / "run", *settings, model=llama, data=rows, view=view)
    assert [text for text in view.stages if text.startswith("alert: ")] == ["alert: something else (to try: mend that)"]
    told = json.loads((result.directory / "run.json").read_text())["alerts"]
    assert [(each["name"], each["step"]) for each in told] == [("made-up", 1), ("new", 3)]


def test_a_look_that_fails_ends_no_run(
    llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor.alerts, "found", lambda *_, **__: 1 / 0)
    view = Silent()
    result = train(tmp_path / "run", "train.max_steps=2", model=llama, data=rows, view=view)
    assert result.outcome.steps == 2
    assert any("ZeroDivisionError" in text for text in view.stages)


def test_a_source_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "PATIENCE_SECONDS", 0.05)
    release, is_in = threading.Event(), threading.Event()

    def hangs() -> dict[str, Any]:
        is_in.set()
        release.wait(60)
        return {}

    made = started(tmp_path, hangs)
    assert is_in.wait(20)
    made.stop()
    release.set()
    made.thread.join(20)
    assert not (tmp_path / sampler.FILE).exists(), "nothing is written after the end"


def test_a_run_that_was_taken_over_writes_no_more(tmp_path: Path) -> None:
    def taken() -> None:
        raise OSError("another run holds it")

    made = Sampler(tmp_path, every_seconds=0.001, open_sources=lambda: ([dict], lambda: None), fence=taken)
    made.start()
    made.thread.join(20)
    assert not (tmp_path / sampler.FILE).exists()
    assert made.problem == "monitoring ended: OSError: another run holds it"


def test_a_long_file_is_thinned_out_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MOST_LINES", 40)
    (tmp_path / sampler.FILE).write_text("".join(f'{{"old": {each}}}\n' for each in range(39)))
    made = started(tmp_path, lambda: {"new": 1})
    wait_for(lambda: len(made.samples) > 60)
    made.stop()
    lines = written(tmp_path)
    assert len(lines) <= 41
    assert lines[0] == {"old": 0}
    assert lines[-1]["new"] == 1


class Machine:
    """Files of /proc of a process with one worker, as they stand at a time."""

    def __init__(self) -> None:
        self.files = {
            "/proc/7/task/7/children": "9 ",
            "/proc/stat": "cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 1\n",
            "/proc/7/stat": "7 (a ) b) S " + "0 " * 10 + "50 50 0 0\n",
            "/proc/9/stat": "9 (worker) S " + "0 " * 10 + "10 0 0 0\n",
            "/proc/7/statm": "999 1000 0 0\n",
            "/proc/9/statm": "999 24 0 0\n",
            "/proc/7/io": "rchar: 1\nread_bytes: 1000\n",
        }

    def read_text(self, path: str) -> str | None:
        return self.files.get(path)


def test_cpu_memory_and_reads_are_those_of_process_and_workers_since_the_last_sample() -> None:
    machine = Machine()
    reader = ProcessReader(machine, pid=7, cpus=2)
    machine.files["/proc/7/stat"] = "7 (a ) b) S " + "0 " * 10 + "90 60 0 0\n"
    machine.files["/proc/stat"] = "cpu 200 0 100 800 100 0 0 0 0 0\n"
    machine.files["/proc/7/io"] = "rchar: 1\nread_bytes: 5000\n"
    reader.before = SimpleNamespace(**{**vars(reader.before), "at": time.monotonic() - 4.0})  # type: ignore[assignment]
    found = reader.sample()
    ticks = os.sysconf("SC_CLK_TCK")
    assert found["cpu_share"] == pytest.approx(50 / ticks / 4 / 2, rel=0.05)
    assert found["machine_cpu_share"] == pytest.approx(0.5)
    assert found["rss_bytes"] == 1024 * os.sysconf("SC_PAGE_SIZE")
    assert found["workers"] == 1
    assert found["read_bytes_per_second"] == pytest.approx(1000, rel=0.05)


def test_what_proc_does_not_show_is_left_out() -> None:
    machine = Machine()
    machine.files = {}
    assert ProcessReader(machine, pid=7, cpus=2).sample() == {"workers": 0}


def test_a_machine_without_a_rest_is_busy_by_all_of_it_and_not_by_more() -> None:
    machine = Machine()
    machine.files["/proc/stat"] = "cpu 2354257 0 0 9649656 0 0 0 0 0 0\n"
    reader = ProcessReader(machine, pid=7, cpus=2)
    machine.files["/proc/stat"] = "cpu 2354266 0 0 9649656 0 0 0 0 0 0\n"  # 9 ticks: 1.00000000004 in floating point
    assert reader.sample()["machine_cpu_share"] == 1


def test_the_real_proc_knows_this_process() -> None:
    reader = ProcessReader(Host(), pid=os.getpid(), cpus=os.cpu_count() or 1)
    ends = time.process_time() + 0.1
    while time.process_time() < ends:
        pass
    found = reader.sample()
    assert found["cpu_share"] > 0
    assert 0 <= found["machine_cpu_share"] <= 1


class Refused(Exception):
    """What NVML raises."""


def nvml(**answers: Any) -> Any:
    """The few calls of NVML, with answers in its units (documented: percent, bytes, mW, MHz)."""

    def answer(name: str) -> Any:
        def ask(*_: Any) -> Any:
            if name not in answers:
                raise Refused
            return answers[name]

        return ask

    names = ("UtilizationRates", "MemoryInfo", "PowerUsage", "Temperature", "ClockInfo", "CurrentClocksEventReasons")
    calls = {f"nvmlDeviceGet{name}": answer(name) for name in names}
    more = {"NVMLError": Refused, "NVML_TEMPERATURE_GPU": 0, "NVML_CLOCK_SM": 1}
    return SimpleNamespace(
        **calls,
        **more,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
    )


def test_a_card_tells_its_state_in_our_units() -> None:
    library = nvml(
        UtilizationRates=SimpleNamespace(gpu=87, memory=40),
        MemoryInfo=SimpleNamespace(used=3 << 30, total=24 << 30),
        PowerUsage=150_500,
        Temperature=66,
        ClockInfo=1695,
        CurrentClocksEventReasons=0x04 | 0x20,
    )
    found = GpuSampler.open(library, 0)
    assert found is not None
    assert found.sample() == {
        "utilization": 0.87,
        "card_used_bytes": 3 << 30,
        "card_total_bytes": 24 << 30,
        "power_watts": 150.5,
        "temperature_celsius": 66,
        "sm_mhz": 1695,
        "slowdowns": ("SW Power Cap", "SW Thermal Slowdown"),
    }


def test_a_question_that_a_card_refuses_is_left_out() -> None:
    found = GpuSampler.open(nvml(MemoryInfo=SimpleNamespace(used=1, total=2)), 0)
    assert found is not None
    assert found.sample() == {"card_used_bytes": 1, "card_total_bytes": 2}


def test_without_nvml_there_is_no_sampler() -> None:
    library = nvml()

    def failing(*_: Any) -> None:
        raise Refused

    library.nvmlInit = failing
    assert GpuSampler.open(library, 0) is None
    library.nvmlInit = lambda: None
    library.nvmlDeviceGetHandleByIndex = failing
    assert GpuSampler.open(library, 0) is None
