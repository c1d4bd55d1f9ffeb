"""The marker `fakegpu`: a test that has it runs on the stand-in GPU, in a process of pytest's own.

    @pytest.mark.fakegpu                        one H100
    @pytest.mark.fakegpu(cc=75, memory=16 << 30)    another device; the settings of `environment`
    @pytest.mark.fakegpu(real=True)             on a real GPU where there is one, in this process

All tests of a file with the same device run in one process: it is preloaded at its start, and importing torch takes
seconds. That process hands back pytest's own reports, so that a test is reported like any other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from fakegpu.environment import CannotBeBuilt, environment, has_real_gpu, is_here

REPORTS = "FAKEGPU_REPORTS"
"""The file to which the process on the stand-in writes its reports."""
TAIL = 6000


class FakeGpu:
    """The plugin; what a file's tests gave is kept until they are reported."""

    def __init__(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "fakegpu(real=False, **device): runs on the stand-in GPU; see tests/fakegpu")
        self.reports: dict[str, list[dict[str, Any]]] = {}
        self.begun: set[tuple[str, str]] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a marked test there, with the others of its file and device, and report it here."""
        marker = item.get_closest_marker("fakegpu")
        if marker is None or is_here() or (marker.kwargs.get("real") and has_real_gpu()):
            return None
        group = (str(item.path), device_of(marker))
        if group not in self.begun:
            self.begun.add(group)
            self.run(item, group)
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in self.reports.pop(item.nodeid):
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        item.session._setupstate.teardown_exact(nextitem)  # what the item before it left for this one
        return True

    def run(self, item: pytest.Item, group: tuple[str, str]) -> None:
        """Run all tests of a group and keep their reports."""
        marked = ((each, each.get_closest_marker("fakegpu")) for each in item.session.items)
        items = [each for each, marker in marked if marker and (str(each.path), device_of(marker)) == group]
        try:
            reports, log = run_there(items, json.loads(group[1]))
        except CannotBeBuilt as error:
            for each in items:
                self.reports[each.nodeid] = [data(each, "skipped", (str(each.path), 0, f"Skipped: {error}"))]
            return
        for each in items:
            told = reports[each.nodeid]
            if not any(report["when"] == "teardown" for report in told):
                told.append(data(each, "failed", f"the process on the stand-in GPU ended in this test:\n{log}"))
            self.reports[each.nodeid] = told


def device_of(marker: pytest.Mark) -> str:
    """What a test wants of the device, as JSON."""
    return json.dumps({name: value for name, value in marker.kwargs.items() if name != "real"}, sort_keys=True)


def data(item: pytest.Item, outcome: Any, why: Any) -> dict[str, Any]:
    """A report of what could not be run, as pytest hands reports from process to process."""
    report = pytest.TestReport(item.nodeid, item.location, {}, outcome, why, "call")
    return item.config.hook.pytest_report_to_serializable(config=item.config, report=report)


def run_there(items: list[pytest.Item], device: dict[str, Any]) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """The reports of tests that ran on the stand-in, by test, and the end of what the process printed."""
    config = items[0].config
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    full = ["--full"] if config.getoption("--full") else []
    with tempfile.TemporaryDirectory(prefix="fakegpu-") as folder:
        file, log = Path(folder, "reports"), Path(folder, "log")
        file.touch()
        names = [item.nodeid for item in items]
        with log.open("w") as output:
            subprocess.run(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *full, *names],
                cwd=config.rootpath,
                env=os.environ | environment(**device) | {REPORTS: str(file)},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        for line in file.read_text().splitlines():
            report = json.loads(line)
            found[report["nodeid"]].append(report)
        return found, log.read_text(errors="replace")[-TAIL:]


class Reporter:
    """In the process on the stand-in: writes each report, at once."""

    def __init__(self, config: pytest.Config, file: Path) -> None:
        self.config, self.file = config, file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line of JSON a report."""
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with self.file.open("a") as file:
            file.write(json.dumps(data) + "\n")


def register(config: pytest.Config) -> None:
    """Add the marker, and in the process on the stand-in what reports."""
    config.pluginmanager.register(FakeGpu(config))
    reports = os.environ.get(REPORTS)
    if reports and is_here():
        config.pluginmanager.register(Reporter(config, Path(reports)))
