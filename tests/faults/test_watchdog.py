"""P12: a hang ends with 82 within its limit; what was only stopped, suspended or slow is no hang. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.conftest import Trial

from loradock.distributed import watchdog
from loradock.distributed.watchdog import Limits, Watchdog

pytestmark = pytest.mark.thin(2)

HEALTHCHECK = Path(__file__).parents[2] / "docker" / "healthcheck"
HANGS = 82
SLACK_SECONDS = 6.0  # for a machine that others use; what hangs here would for a minute

RUN = """
import os, subprocess, sys, threading, time
from pathlib import Path
from loradock.distributed.watchdog import Limits, Watchdog
def wrote_end(hung):
    print("end", time.monotonic(), hung, flush=True)
setup, step, save = (float(each) for each in sys.argv[1].split(","))
named = os.environ.get("LORADOCK_HEARTBEAT")
heartbeat = Path(named) if named else None
with Watchdog(
    Limits(setup_seconds=setup, step_seconds=step, save_seconds=save), heartbeat=heartbeat, on_hang=wrote_end
) as dog:
{body}
print("finished", flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    exit_code: int
    seconds: float
    out: str
    err: str


def program(*body: str) -> str:
    return RUN.replace("{body}", "\n".join(f"    {line}" for line in body))


def start(*body: str, limits: str, heartbeat: Path | None = None) -> subprocess.Popen[str]:
    environ = {**os.environ, **({"LORADOCK_HEARTBEAT": str(heartbeat)} if heartbeat else {})}
    command = [sys.executable, "-c", program(*body), limits]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def ended(process: subprocess.Popen[str], *, timeout: float = 60) -> Ended:
    out, err = process.communicate(timeout=timeout)
    began = [float(line.split()[1]) for line in out.splitlines() if line.startswith("hangs ")]
    return Ended(exit_code=process.returncode, seconds=time.monotonic() - began[0] if began else 0.0, out=out, err=err)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(is_so: Callable[[], bool], *, seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.02)
    return is_so()


WORKERS = (
    'child = subprocess.Popen(["sh", "-c", "sleep 61 & echo $!; wait"], stdout=subprocess.PIPE, process_group=0)',
    'print("children", child.pid, int(child.stdout.readline()), flush=True)',
)
SLEEP = ('print("hangs", time.monotonic(), flush=True)', "time.sleep(60)")


@pytest.mark.parametrize(
    ("phase", "limits", "doing"),
    [("setup", "1,0,0", "setting up"), ("step", "0,1,0", "training"), ("save", "0,0,1", "saving")],
)
def test_a_silent_phase_ends_with_82_within_its_limit_and_its_workers_with_it(
    phase: str, limits: str, doing: str, trial: Trial
) -> None:
    end = ended(start(*WORKERS, f'dog.beat("{phase}")', *SLEEP, limits=limits))
    children = [int(pid) for pid in end.out.splitlines()[0].split()[1:]]
    are_gone = eventually(lambda: not any(is_alive(pid) for pid in children))
    is_in_time = 1.0 <= end.seconds <= 1.0 + SLACK_SECONDS
    trial("P12", end.exit_code == HANGS and are_gone and is_in_time, phase=phase, seconds=round(end.seconds, 2))
    assert f"while {doing} (limit 1 s)" in end.out
    assert "error: no progress for " in end.err
    assert "time.sleep" not in end.err
    assert 'File "<string>"' in end.err, "the stacks show where the main thread is"
    assert "finished" not in end.out


def test_a_worker_that_never_answers_ends_with_82(trial: Trial) -> None:
    body = (
        "import torch.utils.data as data",
        "class Rows(data.Dataset):",
        "    def __len__(self): return 4",
        "    def __getitem__(self, index):",
        '        if index == 2: print("hangs", time.monotonic(), flush=True); time.sleep(60)',
        "        return index",
        "for _ in data.DataLoader(Rows(), num_workers=1):",
        '    dog.beat("step")',
    )
    end = ended(start(*body, limits="60,1,60"), timeout=120)
    trial("P12", end.exit_code == HANGS, fault="a data worker that sleeps", seconds=round(end.seconds, 2))


def test_each_phase_has_its_own_limit_and_zero_is_none(trial: Trial) -> None:
    body = ("time.sleep(1.7)", 'dog.beat("step")', "time.sleep(0.3)", 'dog.beat("save")', "time.sleep(1.7)")
    end = ended(start(*body, limits="0,1,9"))
    trial("P12", end.exit_code == 0 and "finished" in end.out, fault="none: slow setup and save", said=end.err[-500:])


def test_beats_keep_a_long_step_alive(trial: Trial) -> None:
    end = ended(start('dog.beat("step")', "for _ in range(20): time.sleep(0.1); dog.beat()", limits="1,1,1"))
    trial("P12", end.exit_code == 0, fault="none: beats in a long step", said=end.err[-500:])


def test_a_process_that_was_stopped_for_longer_than_its_limit_is_not_hung(trial: Trial) -> None:
    body = ('dog.beat("step")', 'print("waits", flush=True)', "sys.stdin.readline()", "dog.beat()", "time.sleep(0.7)")
    command = [sys.executable, "-c", program(*body), "2,2,2"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.7)  # until its beat was seen
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        out, err = process.communicate("on\n", timeout=30)
    trial("P12", process.returncode == 0 and "finished" in out, fault="none: SIGSTOP for 3 s, limit 2 s", said=err)


def test_a_process_that_hangs_after_it_was_stopped_is_hung(trial: Trial) -> None:
    process = start('dog.beat("step")', *SLEEP, limits="1,1,1")
    time.sleep(0.8)
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    process.send_signal(signal.SIGCONT)
    trial("P12", ended(process).exit_code == HANGS, fault="hangs after SIGSTOP and SIGCONT")


BESIDE = (
    "def work():",
    '    with dog.beside("save"): print("hangs", time.monotonic(), flush=True); time.sleep(SECONDS)',
    "threading.Thread(target=work, daemon=True).start()",
    'for _ in range(60): dog.beat("step"); time.sleep(0.05)',
)


@pytest.mark.parametrize(("seconds", "code"), [("60", HANGS), ("0.2", 0)])
def test_a_thread_beside_has_the_limit_of_its_phase_though_training_beats(
    seconds: str, code: int, trial: Trial
) -> None:
    body = [line.replace("SECONDS", seconds) for line in BESIDE]
    end = ended(start(*body, limits="0,60,1"))
    assert end.exit_code == code, end.err
    if code:
        is_in_time = end.seconds < 1 + SLACK_SECONDS
        trial("P12", is_in_time and "while saving (limit 1 s)" in end.err, fault="a commit hangs", seconds=end.seconds)


def test_last_words_that_hang_do_not_keep_the_process(trial: Trial) -> None:
    fault = "the record of the end hangs too, and stderr is full"
    body = (
        "import fcntl, loradock.distributed.watchdog as room",
        "room.LAST_WORDS_SECONDS = 1.0",
        "dog._on_hang = lambda hung: time.sleep(60)",
        "read, write = os.pipe()",
        "os.dup2(write, 2)",
        "os.set_blocking(2, False)",
        "try:",
        '    while os.write(2, b"x" * 4096): pass',
        "except BlockingIOError: os.set_blocking(2, True)",
        *SLEEP,
    )
    end = ended(start(*body, limits="1,1,1"))
    trial("P12", end.exit_code == HANGS and end.seconds < 2.0 + SLACK_SECONDS, fault=fault, seconds=end.seconds)


def test_a_process_that_ends_in_time_ends_at_once(tmp_path: Path) -> None:
    limits = Limits(setup_seconds=60, step_seconds=60, save_seconds=60)
    seconds: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        with Watchdog(limits, heartbeat=tmp_path / "heartbeat", on_hang=print):
            assert (tmp_path / "heartbeat").exists()
        seconds.append(time.monotonic() - began)
    assert min(seconds) < watchdog.TICK_SECONDS / 2
    assert not (tmp_path / "heartbeat").exists()
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())


def test_the_heartbeat_tells_of_the_last_beat_and_grows_old_without_one(tmp_path: Path) -> None:
    heartbeat = tmp_path / "heartbeat"
    with Watchdog(Limits(setup_seconds=0, step_seconds=0, save_seconds=0), heartbeat=heartbeat, on_hang=print) as dog:
        os.utime(heartbeat, (0, 0))
        dog.beat()
        assert eventually(lambda: time.time() - heartbeat.stat().st_mtime < 1)
        os.utime(heartbeat, (0, 0))
        time.sleep(1.6)
        assert heartbeat.stat().st_mtime == 0, "nothing beat since"
    assert dog.problem is None


def test_a_heartbeat_that_cannot_be_written_is_said_and_ends_nothing(tmp_path: Path) -> None:
    limits = Limits(setup_seconds=0, step_seconds=0, save_seconds=0)
    with Watchdog(limits, heartbeat=tmp_path / "absent" / "heartbeat", on_hang=print) as dog:
        dog.beat("step")
    assert dog.problem
    assert "absent/heartbeat cannot be written: No such file" in dog.problem


def test_the_healthcheck_follows_a_real_heartbeat(tmp_path: Path) -> None:
    heartbeat = tmp_path / "heartbeat"
    body = ('print("beats", flush=True)', 'while sys.stdin.readline() == "beat\\n": dog.beat()')

    def healthcheck(limit_seconds: int) -> int:
        environ = {**os.environ, "LORADOCK_HEARTBEAT_LIMIT": str(limit_seconds)}
        return subprocess.run(["sh", str(HEALTHCHECK)], env=environ, stdout=subprocess.DEVNULL, timeout=60).returncode

    def lives() -> bool:
        assert process.stdin
        process.stdin.write("beat\n")
        process.stdin.flush()
        return healthcheck(2) == 0

    environ = {**os.environ, "LORADOCK_HEARTBEAT": str(heartbeat)}
    command = [sys.executable, "-c", program(*body), "0,0,0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "beats\n"
        assert eventually(lives)
        assert eventually(lambda: healthcheck(2) == 1), "no beat for 3 s, and the limit is 2 s"
        assert eventually(lives)
        process.communicate("end\n", timeout=30)
    assert process.returncode == 0
    assert not heartbeat.exists()


def test_a_beat_costs_less_than_a_microsecond() -> None:
    dog = Watchdog(Limits(setup_seconds=0, step_seconds=0, save_seconds=0), heartbeat=None, on_hang=print)
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(10_000):
            dog.beat()
        rounds.append((time.perf_counter() - began) / 10_000)
    assert min(rounds) < 1e-6


def test_descendants_are_found_through_processes_with_odd_names(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 ("
    odd.write_bytes(Path("/bin/sleep").read_bytes())
    odd.chmod(0o755)
    with subprocess.Popen(["sh", "-c", f"'{odd}' 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        sleeping = int(process.stdout.readline())
        try:
            assert {process.pid, sleeping} <= set(watchdog.descendants(os.getpid()))
        finally:
            os.kill(sleeping, signal.SIGKILL)
