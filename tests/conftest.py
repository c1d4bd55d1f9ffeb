"""What holds for every test: the `--full` option, and the account of what was skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ALLOWED_SKIPS = Path(__file__).with_name("skips.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--write-faults", action="store_true", help="write docs/faults.md from the faults that are made")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: takes minutes; runs with --full only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def forbidden_skips(config: pytest.Config) -> list[str]:
    """Under CI: each skipped test whose reason does not begin with a line of skips.txt, as `test: reason`."""
    if os.environ.get("CI", "").lower() not in {"1", "true"}:
        return []
    lines = ALLOWED_SKIPS.read_text(encoding="utf-8").splitlines()
    allowed = tuple(line for line in lines if line and not line.startswith("#"))
    reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    forbidden: list[str] = []
    for report in reporter.stats.get("skipped", []) if reporter else []:
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if not reason.startswith(allowed):
            forbidden.append(f"{report.nodeid}: {reason}")
    return forbidden


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and forbidden_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    forbidden = forbidden_skips(config)
    if forbidden:
        terminalreporter.section("skips that tests/skips.txt does not allow")
        for line in forbidden:
            terminalreporter.line(line, red=True)
