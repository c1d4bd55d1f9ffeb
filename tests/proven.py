"""One proof for all trainings of a run of tests that this machine can train: each alone would take 10 to 20 s.

A test of a training leaves `train`'s own proof out by `unchecked(why)` alone, and says why. Models of other people are
trained with nothing left out, in tests/published and tests/real: they take what `knowing` gives, as a second run does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from loradock.env_check.kept import NAME

OPTION = "--skip-env-check"
"""For a command that is written down before it is known whether it will run: what runs it calls `unchecked`, too."""
VERDICT = "LORADOCK_TESTS_VERDICT"
"""Names the file of the verdict, which the processes of a run of tests share; a campaign alone has none."""
NOTHING_WRONG = "this machine can train"


def unchecked(why: str) -> str:
    """The option that leaves the proof out of a command, once the machine is proven; `why` this test needs none."""
    assert why
    prove()
    return OPTION


def knowing(folder: Path) -> Path:
    """A new cache in `folder` with what that proof left: `train` does not read the installed files again for it.

    It computes what differs, for another model or other variables, and all of it where a file changed since.
    """
    prove()
    folder.mkdir()
    if shared := os.environ.get(VERDICT):
        shutil.copy(Path(shared).with_name(NAME), folder)
    return folder


@cache
def prove() -> None:
    """Look at the machine as `train` does, once a run of tests; AssertionError where it cannot train."""
    shared = os.environ.get(VERDICT)
    with Path(shared).open("a+", encoding="utf-8") if shared else tempfile.TemporaryFile("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        said = file.read()
        if not said:
            command = [sys.executable, "-m", "loradock", "env-check", "--level", "compute"]
            environment = os.environ | {"LORADOCK_CACHE": str(Path(shared).parent)} if shared else None
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            said = NOTHING_WRONG if done.returncode == 0 else done.stdout + done.stderr
            file.write(said)
    assert said == NOTHING_WRONG, said
