"""The launcher with real small processes: what they are told, signals, exit codes, and who is said to have failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loradock.distributed import processes
from loradock.distributed.place import Place

pytestmark = pytest.mark.thin(1)

HEARS = (
    "import signal; from loradock.process.signals import SIGNALS; signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS);"
)
"""As `signals.install` does it: until then a signal waits."""
LAUNCHER = """
import json, os, sys
from pathlib import Path
from loradock.distributed import processes
from loradock.distributed.place import Place
folder, code, grace, failed_seconds = sys.argv[1:]
processes.FAILED_SECONDS = float(failed_seconds)
place = Place(processes=2, nodes=1, node=0, host="127.0.0.1", port=1)
launched = processes.launch([sys.executable, "-c", code], place=place, environment=os.environ, folder=Path(folder),
                            grace_seconds=float(grace) if grace else None)
culprit = launched.culprit
print(json.dumps({"codes": [rank.code for rank in launched.ranks], "culprit": culprit and culprit.number,
                  "told": processes.told(launched)}))
"""


def started(folder: Path, code: str, *, grace: str = "", failed_seconds: float = 60) -> subprocess.Popen[str]:
    """A launcher of two processes that run `code`."""
    arguments = [sys.executable, "-c", LAUNCHER, str(folder), HEARS + code, grace, str(failed_seconds)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(launcher: subprocess.Popen[str]) -> dict[str, object]:
    """What the launcher found, and what was written."""
    try:
        output, errors = launcher.communicate(timeout=60)
    finally:
        launcher.kill()  # what it started goes with it
    *shown, found = output.splitlines()
    return {**json.loads(found), "shown": shown, "errors": errors}


def launched(folder: Path, code: str, **more: object) -> dict[str, object]:
    return ended(started(folder, code, **more))  # type: ignore[arg-type]


def wait_for(file: Path) -> str:
    until = time.monotonic() + 30
    while not file.exists() or not file.read_text():
        assert time.monotonic() < until, f"{file.name} did not come"
        time.sleep(0.02)
    return file.read_text()


def test_each_process_knows_its_place_and_only_the_first_one_is_shown(tmp_path: Path) -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT".split()
    code = f"import os; print([os.environ[name] for name in {names!r}], os.getpgid(0) == os.getpid(), flush=True)"
    found = launched(tmp_path, code)
    assert (found["codes"], found["culprit"], found["told"]) == ([0, 0], None, None)
    assert found["shown"] == ["['0', '0', '2', '2', '0', '127.0.0.1', '1'] True"]
    assert (tmp_path / "rank-1.log").read_text() == "['1', '1', '2', '2', '0', '127.0.0.1', '1'] True\n"


def test_the_first_that_fails_lends_its_exit_code_and_the_others_may_end_by_themselves(tmp_path: Path) -> None:
    code = """
import os, pathlib, sys, time
rank, word = int(os.environ['RANK']), pathlib.Path(os.environ['LORADOCK_LAST_WORDS'], '1.json')
while rank == 0 and not word.exists(): time.sleep(0.02)
sys.exit(79 - rank)
"""
    found = launched(tmp_path, code)
    assert (found["codes"], found["culprit"]) == ([79, 78], 1)
    assert "ended with exit code 78; then rank 0: 79" in str(found["told"])


def test_one_that_another_took_along_is_not_the_one_that_failed(tmp_path: Path) -> None:
    """Rank 0 ends first: it was told of rank 1's end, and lingers no longer."""
    code = """
import os, pathlib, sys, time
words = pathlib.Path(os.environ['LORADOCK_LAST_WORDS'])
if os.environ['RANK'] == '0':
    (words / '0.peer').touch()
    sys.exit(65)
while not (words / '0.json').exists(): time.sleep(0.02)
sys.exit(65)
"""
    found = launched(tmp_path, code)
    assert (found["codes"], found["culprit"]) == ([65, 65], 1)


def test_a_killed_process_is_written_down_for_the_others(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal, sys, time
if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)
word = pathlib.Path(os.environ['LORADOCK_LAST_WORDS'], '1.json')
while not word.exists(): time.sleep(0.02)
pathlib.Path({str(tmp_path / "word")!r}).write_text(word.read_text())
sys.exit(71)
"""
    found = launched(tmp_path, code)
    assert (found["codes"], found["culprit"]) == ([71, 137], 1)
    assert "was killed by SIGKILL; then rank 0: 71" in str(found["told"])
    assert json.loads((tmp_path / "word").read_text()) == {"code": 137, "what": "was killed by SIGKILL"}


def test_what_does_not_end_after_a_failure_is_asked_to_and_then_killed(tmp_path: Path) -> None:
    """Rank 0 fails; rank 1 hears SIGTERM, and does not obey."""
    code = f"""
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path({str(tmp_path / "asked")!r}).touch())
pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).touch()
while not pathlib.Path({str(tmp_path / "1")!r}).exists(): time.sleep(0.02)
if os.environ['RANK'] == '0': sys.exit(71)
while True: time.sleep(0.1)
"""
    found = launched(tmp_path, code, grace="1", failed_seconds=1)
    assert (found["codes"], found["culprit"]) == ([71, 137], 0), "the launcher's own kill is nobody's failure"
    assert (tmp_path / "asked").exists()


STOPS = """
import os, pathlib, signal, sys, time
heard = []
for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(each, lambda number, frame: heard.append(number))
pathlib.Path({folder!r}, "ready-" + os.environ['RANK']).write_text("1")
while not heard: time.sleep(0.02)
time.sleep({seconds})
sys.exit(75 if len(heard) == 1 else 70)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_is_passed_on_once_and_waited_for(sent: signal.Signals, tmp_path: Path) -> None:
    launcher = started(tmp_path, STOPS.format(folder=str(tmp_path), seconds=2))
    for rank in range(2):
        wait_for(tmp_path / f"ready-{rank}")
    launcher.send_signal(sent)
    found = ended(launcher)
    assert (found["codes"], found["told"]) == ([75, 75], None)


def test_after_the_grace_that_was_given_it_is_waited_no_longer(tmp_path: Path) -> None:
    launcher = started(tmp_path, STOPS.format(folder=str(tmp_path), seconds=600), grace="0.5")
    for rank in range(2):
        wait_for(tmp_path / f"ready-{rank}")
    launcher.send_signal(signal.SIGTERM)
    assert ended(launcher)["codes"] == [137, 137]


def test_the_launcher_takes_its_processes_along_when_it_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, time
pathlib.Path({str(tmp_path)!r}, "pid-" + os.environ['RANK']).write_text(str(os.getpid()))
while True: time.sleep(1)
"""
    launcher = started(tmp_path, code)
    handles = [os.pidfd_open(int(wait_for(tmp_path / f"pid-{rank}"))) for rank in range(2)]
    launcher.kill()
    launcher.communicate(timeout=30)
    import select

    for handle in handles:
        assert select.select([handle], [], [], 20)[0], "still there"
        os.close(handle)


def test_a_signal_that_the_caller_ignored_stays_ignored(tmp_path: Path) -> None:
    """nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.passed_on() as signals:
            assert signal.SIGHUP not in signals
            assert signal.SIGTERM in signals
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_ranks_of_a_machine_follow_those_of_the_machines_before_it() -> None:
    place = Place(processes=4, nodes=3, node=2, host="node-0", port=29500)
    assert list(place.ranks()) == [8, 9, 10, 11]
    environment = place.environment(9)
    assert (environment["LOCAL_RANK"], environment["WORLD_SIZE"], environment["GROUP_RANK"]) == ("1", "12", "2")


@pytest.mark.parametrize(
    ("code", "words"), [(137, "was killed by SIGKILL"), (139, "was killed by SIGSEGV"), (79, "ended with exit code 79")]
)
def test_an_end_is_told_in_words(code: int, words: str) -> None:
    with subprocess.Popen(["true"]) as process:
        assert processes.Rank(number=0, process=process, log=None, code=code).ending() == words
