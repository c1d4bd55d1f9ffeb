"""A library that reads somebody's file, in a process of its own: what it does to that process, it would do to the run.

A file can make a library abort (SIGABRT), take all memory, or never end, and none of that is an exception that could be
caught. Python code that comes with a file and runs for every row is bounded in this process, by `bounded.py`.
"""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass

from loradock.errors import EnvironmentUnfit
from loradock.process import python

LEAST_WALL_SECONDS, WALL_SECONDS_A_SECOND = 400, 20
"""Until it is ended from here, on a machine that has other work too."""
ENDLESS = (-signal.SIGXCPU, -signal.SIGKILL)
LIMITS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]),) * 2)
def limit_memory():
    own = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + int(sys.argv[2]),) * 2)
arguments = sys.argv[3:]
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the process ended: its exit code (minus the signal's number), and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def is_endless(self) -> bool:
        """True where its time ran out."""
        return self.code in ENDLESS

    @property
    def ending(self) -> str:
        """SIGABRT, or code 3."""
        return signal.Signals(-self.code).name if self.code < 0 else f"code {self.code}"


def run(program: str, *arguments: str, seconds: int, more_bytes: int, stdin: str = "") -> Ended:
    """Run a Python program within that much CPU time, and, once it calls `limit_memory()`, that much more memory.

    It finds its `arguments` under that name. EnvironmentUnfit where no process can be started.
    """
    command = python.command("-c", LIMITS + program, str(seconds), str(more_bytes), *arguments)
    wall_seconds = max(LEAST_WALL_SECONDS, WALL_SECONDS_A_SECOND * seconds)
    try:
        result = subprocess.run(
            command, input=stdin, capture_output=True, text=True, errors="replace", timeout=wall_seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        return Ended(code=-signal.SIGKILL, stdout=_text(error.stdout), stderr=_text(error.stderr))
    except OSError as error:
        raise EnvironmentUnfit(f"no process could be started: {error}", hint="free memory or processes") from error
    return Ended(code=result.returncode, stdout=result.stdout, stderr=result.stderr)


def _text(printed: bytes | str | None) -> str:
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""
