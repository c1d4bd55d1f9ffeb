"""A program apart: whatever it does to its own process, this one gets an ending."""

from __future__ import annotations

import signal

import pytest

from loradock.process import apart

ENDINGS = {
    "print(sum(map(int, arguments)), len(sys.stdin.read()))": 0,
    "sys.exit(3)": 3,
    "import os; os.abort()": -signal.SIGABRT,
    "while True: pass": -signal.SIGKILL,
    "limit_memory(); bytes(1 << 30)": 1,
    "bytes(1 << 28)": 0,
}


@pytest.mark.parametrize("program", ENDINGS)
def test_each_ending_comes_back(program: str) -> None:
    ended = apart.run(program, "1", "2", seconds=1, more_bytes=64 << 20, stdin="text")
    assert ended.code == ENDINGS[program] or (ended.is_endless and ENDINGS[program] == -signal.SIGKILL), ended
    assert ended.is_endless == program.startswith("while")
    assert ended.stdout.strip() == ("3 4" if "sum" in program else "")
    assert ("MemoryError" in ended.stderr) == ("limit" in program)


def test_an_ending_has_a_name() -> None:
    assert apart.Ended(code=-signal.SIGABRT, stdout="", stderr="").ending == "SIGABRT"
    assert apart.Ended(code=3, stdout="", stderr="").ending == "code 3"


def test_one_that_waits_for_ever_is_ended_from_here_with_what_it_had_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "LEAST_WALL_SECONDS", 3)
    monkeypatch.setattr(apart, "WALL_SECONDS_A_SECOND", 1)
    ended = apart.run("import time; print('begun', flush=True); time.sleep(99)", seconds=1, more_bytes=1 << 20)
    assert (ended.is_endless, ended.stdout.strip()) == (True, "begun")
