"""Faults: each is made (for real where that can be), looked for by `env-check`, and compared with docs/faults.md.

To add one: a test that makes the fault, runs `examined(...)`, and hands the finding to `faults.seen(...)`; then
`pytest tests/env_check --write-faults` writes its row.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loradock.env_check import CHECKS

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "faults.md"
HEAD = """\
# Faults, and what env-check says

<!-- Made by the tests that make the faults: .venv/bin/pytest tests/env_check --write-faults -->

Each row is a test in `tests/env_check/`. *real*: the fault was made on a machine; *recorded*: read from public output
of a GPU host (`tests/facts/`, with its source); *constructed*: facts that nobody recorded. Numbers and paths are
examples.

| fault | made | check | severity | finding | remedy | exit code |
|---|---|---|---|---|---|---|
"""
MADE = ("real", "recorded", "constructed")
MADE_UP = re.compile(rf"/tmp/pytest-of-\S+?/pytest-\d+/[^/ :)]+|{re.escape(str(ROOT))}|{re.escape(sys.base_prefix)}")
BY_PIP = re.compile(r"(\S+)/bin/pip (install|uninstall)( --force-reinstall)?")
VARYING = re.compile(r"(/[\w.@+-]+)+|\d[\d.,]*( [KMGT]i?B)?")


def by_uv(text: str) -> str:
    """A remedy as an environment without pip gets it: whether the one that runs the tests has a pip depends on uv."""
    again = " --reinstall"
    return BY_PIP.sub(lambda m: f"uv pip {m[2]} --python {m[1]}/bin/python{again if m[3] else ''}", text)


def rows() -> dict[str, list[str]]:
    """{fault: cells} of docs/faults.md."""
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else HEAD
    lines = [line for line in text.removeprefix(HEAD).splitlines() if line.startswith("| ")]
    cells = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {each[0]: each for each in cells if each[0] != "fault"}


@dataclass(frozen=True)
class Faults:
    """docs/faults.md as the list of what every fault has to look like."""

    is_writing: bool

    def seen(self, fault: str, *, made: str, finding: Mapping[str, Any], check: str, exit_code: int = 71) -> None:
        """The finding is of this check, no `ok`, ends with this code (a warning with 0), and is as the table says."""
        assert made in MADE
        assert finding["check"] == check, finding
        assert finding["severity"] in ("warning", "error"), finding
        assert finding["remedy"], finding
        assert finding["exit_code"] == (exit_code if finding["severity"] == "error" else 0), finding
        keys = ("severity", "what", "remedy", "exit_code")
        row = [fault, made, f"`{check}`", *(by_uv(MADE_UP.sub("/made", str(finding[key]))) for key in keys)]
        if self.is_writing:
            self._write(row)
            return
        table = rows()
        assert fault in table, f"{fault} is not in docs/faults.md: run pytest tests/env_check --write-faults"
        assert [VARYING.sub("~", cell) for cell in row] == [VARYING.sub("~", cell) for cell in table[fault]]

    def _write(self, row: list[str]) -> None:
        with Path(__file__).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            order = [f"`{check.name}`" for check in CHECKS]
            table = {**rows(), row[0]: row}
            known = sorted(
                (each for each in table.values() if each[2] in order), key=lambda r: (order.index(r[2]), r[0])
            )
            lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in each) + " |\n" for each in known]
            TABLE.write_text(HEAD + "".join(lines), encoding="utf-8")


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Faults:
    return Faults(is_writing=bool(request.config.getoption("--write-faults")))


@dataclass(frozen=True)
class Examined:
    """What `env-check --json` printed, and what the process ended with."""

    exit_code: int
    content: dict[str, Any]

    def one(self, check: str, *, containing: str = "") -> dict[str, Any]:
        """The worst finding of this check whose text contains this."""
        found = [f for f in self.content["findings"] if f["check"] == check and containing in f["what"]]
        assert found, f"{check} said nothing with {containing!r}: {self.content['findings']}"
        return max(found, key=lambda each: ("ok", "warning", "error").index(each["severity"]))


Examine = Callable[..., Examined]


@pytest.fixture(scope="session")
def examined() -> Examine:
    """Run `env-check --json` as a user does: examined("--only", "storage", within=[...], env={...}, cwd=...)."""

    def call(
        *arguments: str,
        within: Sequence[str] = (),
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        python: str = sys.executable,
        timeout: float = 600,
    ) -> Examined:
        """`within` is a command that runs the rest of its line; a variable of `env` that is None is taken away."""
        environ = {**os.environ, **(env or {})}
        environ = {name: value for name, value in environ.items() if value is not None}
        command = [*within, python, "-m", "loradock", "env-check", "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, timeout=timeout)
        assert done.stdout.startswith("{"), (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        content = json.loads(done.stdout)
        assert content["exit_code"] == done.returncode
        return Examined(exit_code=done.returncode, content=content)

    return call


def namespace(script: str) -> list[str]:
    """A command that runs the rest of its line after `script`, in a mount namespace of its own, as its root.

    Skips the test where this machine allows none.
    """
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    probe = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no mount namespaces here: {probe.stderr.strip()}")
    return [*unshare, "sh", "-ec", f'{script}\nexec "$@"', "sh"]
