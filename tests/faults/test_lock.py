"""P10: one writer for a run directory. Real processes; where a mount keeps no locks, strace answers for the kernel."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from env_check.conftest import namespace
from faults.conftest import Trial
from faults.tracing import strace

from loradock.errors import Locked, LoradockError, NotWritable, StorageError
from loradock.training.run_dir.output_lock import LOCK, OutputLock

# Takes the lock when it reads a line, says what came of it, and then does what each further line asks.
OWNER = """
import os, sys
from pathlib import Path
from loradock.training.run_dir.output_lock import OutputLock
from loradock.errors import LoradockError
def tell(text): print(text, flush=True)
tell("ready")
for line in sys.stdin:
    try:
        if line == "take\\n":
            lock = OutputLock.take(Path(sys.argv[1]))
            tell(f"taken {lock.warning or ''}")
        elif line == "check\\n":
            lock.check()
            tell("ours")
        elif line == "fork\\n":
            child = os.fork()
            if not child:
                os.close(1)
                import time
                time.sleep(60)
            tell(str(child))
        elif line == "drop\\n":
            (Path(sys.argv[1]) / ".lock").open().close()
            tell("dropped")
        elif line == "release\\n":
            lock.release()
            tell("released")
    except LoradockError as error:
        tell(f"{error.exit_code} {error.what} | {error.hint}")
"""


class Owner:
    """A process that holds a run directory, or tries to."""

    def __init__(self, directory: Path, *, within: Sequence[str] = ()) -> None:
        command = [*within, sys.executable, "-c", OWNER, str(directory)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def say(self, request: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{request}\n")
        self.process.stdin.flush()

    def ask(self, request: str) -> str:
        self.say(request)
        return self.line()

    def end(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


Owners = Callable[..., Owner]


@pytest.fixture
def owner() -> Iterator[Owners]:
    started: list[Owner] = []

    def start(directory: Path, *, within: Sequence[str] = ()) -> Owner:
        started.append(Owner(directory, within=within))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture
def answering() -> Callable[[Path, str], list[str]]:
    """A command that runs the rest of its line with another answer to each lock call on the directory's lock file."""
    program = strace()

    def command(directory: Path, answer: str) -> list[str]:
        # strace follows a path only where it exists when it starts
        directory.mkdir(exist_ok=True)
        (directory / LOCK).touch()
        return [program, "-f", "-qq", "-o", os.devnull, "-P", str(directory / LOCK), "-e", f"inject=fcntl:{answer}"]

    return command


def holder(directory: Path) -> dict[str, object]:
    return json.loads((directory / LOCK).read_text())


def race(directory: Path, owner: Owners, trial: Trial, *, rounds: int) -> None:
    runs = [owner(directory) for _ in range(2)]
    for turn in range(rounds):
        for run in runs:
            run.say("take")
        answers = [run.line() for run in runs]
        won = [run for run, answer in zip(runs, answers, strict=True) if answer == "taken"]
        refused = [answer for answer in answers if answer.startswith("84 ")]
        trial("P10", len(won) == 1 == len(refused), round=turn, answers=answers)
        assert f"pid {won[0].process.pid}" in refused[0]
        assert won[0].ask("check") == "ours"
        assert holder(directory)["token"] == turn + 1
        won[0].ask("release")


def test_of_two_runs_that_start_at_once_one_wins(tmp_path: Path, owner: Owners, trial: Trial) -> None:
    race(tmp_path / "run", owner, trial, rounds=3)


@pytest.mark.full
def test_of_two_runs_that_start_at_once_one_wins_every_time(tmp_path: Path, owner: Owners, trial: Trial) -> None:
    race(tmp_path / "run", owner, trial, rounds=20)


def test_the_refusal_names_the_owner_and_what_to_do(tmp_path: Path, owner: Owners) -> None:
    first, second = owner(tmp_path), owner(tmp_path)
    first.ask("take")
    pid, started = first.process.pid, holder(tmp_path)["started"]
    assert second.ask("take") == (
        f"84 another run is writing in {tmp_path}: pid {pid} on {socket.gethostname()}, since {started}"
        f" | wait until it has ended; kill {pid} ends it with a checkpoint; or use another --output"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / LOCK]


def test_the_refusal_never_says_to_kill_a_process_that_is_not_the_owner(tmp_path: Path, owner: Owners) -> None:
    first, second = owner(tmp_path), owner(tmp_path)
    first.ask("take")
    (tmp_path / LOCK).write_text(json.dumps({"token": 1, "pid": 1, "host": socket.gethostname()}))
    assert f"; kill {first.process.pid} ends it" in second.ask("take")


def test_a_killed_owner_leaves_the_directory_free(tmp_path: Path, owner: Owners, trial: Trial) -> None:
    first = owner(tmp_path)
    first.ask("take")
    first.end()
    assert holder(tmp_path)["pid"] == first.process.pid
    lock = OutputLock.take(tmp_path)
    trial("P10", holder(tmp_path)["token"] == 2, fault="a killed owner's lock file")
    lock.check()
    lock.release()


def test_a_data_worker_that_outlives_a_killed_owner_does_not_keep_the_lock(
    tmp_path: Path, owner: Owners, trial: Trial
) -> None:
    first = owner(tmp_path)
    first.ask("take")
    worker = int(first.ask("fork"))
    first.end()
    os.kill(worker, 0)
    try:
        OutputLock.take(tmp_path).release()
        trial("P10", True, fault="a killed owner whose forked worker lives")
    finally:
        os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("content", [b"", b'{"token": 7, "own', b"\xff" * 512, b"[]", b'{"token": "x"}'])
def test_a_lock_file_that_was_left_half_written_is_taken_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOCK).write_bytes(content)
    lock = OutputLock.take(tmp_path)
    lock.check()
    assert holder(tmp_path)["token"] == 1
    lock.release()


def test_a_process_that_holds_the_directory_is_refused_a_second_lock_and_keeps_the_first(
    tmp_path: Path, owner: Owners
) -> None:
    lock = OutputLock.take(tmp_path)
    (tmp_path.parent / "link").symlink_to(tmp_path)
    for directory in (tmp_path, tmp_path.parent / "link"):
        with pytest.raises(Locked, match="already holds"):
            OutputLock.take(directory)
    assert owner(tmp_path).ask("take").startswith("84 ")
    lock.release()
    lock.release()
    OutputLock.take(tmp_path).release()


def test_of_threads_in_one_process_one_wins(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def attempt() -> OutputLock | None:
        start.wait()
        try:
            return OutputLock.take(tmp_path)
        except Locked:
            return None

    with ThreadPoolExecutor(8) as pool:
        taken = [lock for lock in [each.result() for each in [pool.submit(attempt) for _ in range(8)]] if lock]
    assert len(taken) == 1
    taken[0].release()


def test_a_lock_that_was_dropped_unnoticed_is_taken_again_at_the_next_check(tmp_path: Path, owner: Owners) -> None:
    first, second = owner(tmp_path), owner(tmp_path)
    first.ask("take")
    first.ask("drop")
    assert first.ask("check") == "ours"
    assert second.ask("take").startswith("84 ")


def test_an_owner_that_lost_its_lock_to_another_run_fails_at_the_next_check(
    tmp_path: Path, owner: Owners, trial: Trial
) -> None:
    first, second = owner(tmp_path), owner(tmp_path)
    first.ask("take")
    first.ask("drop")
    assert second.ask("take") == "taken"
    answer = first.ask("check")
    trial("P10", answer.startswith(f"84 another run has taken over {tmp_path}: pid {second.process.pid}"), said=answer)
    second.end()
    assert first.ask("check").startswith("84 another run has taken over"), "the token stays the other one's"


@pytest.mark.parametrize("harm", ["the file", "the directory", "another file"])
def test_an_owner_whose_lock_file_is_gone_fails_at_the_next_check(tmp_path: Path, harm: str, trial: Trial) -> None:
    directory = tmp_path / "run"
    lock = OutputLock.take(directory)
    if harm == "the directory":
        directory.rename(tmp_path / "elsewhere")
    else:
        (directory / LOCK).unlink()
    if harm == "another file":
        (directory / LOCK).write_text(json.dumps({"token": 9, "owner": "x", "pid": 1, "host": "there"}))
    said = "taken over.* pid 1 on there" if harm == "another file" else "moved or removed"
    with pytest.raises(Locked, match=said):
        lock.check()
    trial("P10", True, fault=f"{harm} in the place of the lock")
    lock.release()


@pytest.mark.parametrize("answer", ["error=ENOLCK", "error=EOPNOTSUPP", "retval=0"])
def test_where_no_locks_are_kept_the_later_run_wins_and_the_earlier_one_ends(
    tmp_path: Path, owner: Owners, answering: Callable[[Path, str], list[str]], answer: str, trial: Trial
) -> None:
    directory = tmp_path / "run"
    within = answering(directory, answer)
    first, second = (owner(directory, within=within) for _ in range(2))
    assert first.ask("take").startswith(f"taken the file system of {directory} keeps no locks")
    assert first.ask("check") == "ours"
    assert second.ask("take").startswith("taken ")
    said, kept = first.ask("check"), second.ask("check")
    trial("P10", said.startswith("84 ") and kept == "ours", fault=f"fcntl: {answer}", said=said)


def test_a_lock_call_that_fails_otherwise_is_an_input_output_error(
    tmp_path: Path, owner: Owners, answering: Callable[[Path, str], list[str]]
) -> None:
    directory = tmp_path / "run"
    answer = owner(directory, within=answering(directory, "error=EIO")).ask("take")
    assert answer.startswith(f"{StorageError.exit_code} "), answer


def test_a_directory_that_cannot_be_written_is_no_locked_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LoradockError) as raised:
        OutputLock.take(tmp_path / "file")
    assert raised.value.exit_code in (NotWritable.exit_code, StorageError.exit_code)
    read_only = f"mount -t tmpfs none '{tmp_path}'; mkdir '{tmp_path}/run'; mount -o remount,ro '{tmp_path}'"
    program = "import sys; from pathlib import Path; from loradock.training.run_dir.output_lock import OutputLock\n"
    program += "from loradock.errors import NotWritable\ntry:\n    OutputLock.take(Path(sys.argv[1]))\n"
    program += "except NotWritable as error:\n    print(error.exit_code)\n"
    command = [*namespace(read_only), sys.executable, "-c", program, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "77\n", done.stderr
