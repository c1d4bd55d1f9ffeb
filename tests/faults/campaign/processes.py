"""Processes under trial: forked from a preloaded parent or started cold, each the leader of a session of its own."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import os
import pkgutil
import select
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIMIT_SECONDS = 180.0
LEFT_OVER_SECONDS = 8.0
POLL_SECONDS = 0.002
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # it would start a thread in the parent
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "MPLBACKEND": "agg",
    "NO_COLOR": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def preload(package: str, *, libraries: Sequence[str]) -> None:
    """Import the libraries of a run and every module of `package`, without starting a thread."""
    warnings.simplefilter("ignore")
    for name in libraries:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    _fill_caches()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch takes back its operators, 9,000 pages that a child would copy at its end
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"the parent of the trials has {len(threads)} threads"
    gc.freeze()  # a child does not look through what is here, and so does not copy it


def _fill_caches() -> None:
    """What every process computes once for itself, and a forked one finds: a sixth of what a tiny training costs."""
    from matplotlib.figure import Figure
    from transformers import conversion_mapping
    from triton.runtime.cache import triton_key

    conversion_mapping.get_checkpoint_conversion_mapping("llama")  # a thousand regular expressions
    triton_key()  # reads 400 MB of compiler
    figure = Figure(layout="constrained")
    figure.add_subplot(title="$1$", xlabel="fonts")
    figure.savefig(io.BytesIO())


def adopt() -> None:
    """Become the parent of what killed children leave behind, and hear Ctrl-C as a fresh Python does."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def die_with_parent() -> None:
    """End when the process that forked this one ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended: `exit_code` as a shell counts it, but negative for the signal that killed it."""

    exit_code: int
    seconds: float


class Process:
    """One process in a session and process group of its own; its output goes to `log`."""

    def __init__(self, main: Callable[[], object], *, cwd: Path, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        ready, tell = os.pipe()
        self.began = time.monotonic()
        self.id = os.fork()
        if not self.id:
            _become(main, cwd=cwd, log=log, environment=environment, tell=tell)
        os.close(tell)
        os.read(ready, 1)  # it leads its group now
        os.close(ready)
        self.handle = os.pidfd_open(self.id)
        self.ended: Ended | None = None

    def wait(self, seconds: float) -> Ended | None:
        """Wait until it has ended, at most this long; None where it runs on."""
        until = time.monotonic() + seconds
        while self.ended is None:
            is_over = select.select([self.handle], [], [], max(0.0, until - time.monotonic()))[0]
            done, status = os.waitpid(self.id, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                self.ended = Ended(exit_code=code, seconds=time.monotonic() - self.began)
                os.close(self.handle)
            elif not is_over:
                break
            else:
                time.sleep(POLL_SECONDS)  # a tracer has not let go of it yet
        return self.ended

    def wait_until(self, seen: Callable[[], object], *, seconds: float = LIMIT_SECONDS) -> bool:
        """Wait until `seen()` is true; False where the process ended first, or the time did."""
        until = time.monotonic() + seconds
        while not seen():
            if self.wait(POLL_SECONDS) or time.monotonic() > until:
                return False
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group."""
        if self.ended is None:
            os.killpg(self.id, number)

    def finish(self, *, seconds: float = LIMIT_SECONDS) -> Ended:
        """Wait for its end; one that does not end in time is killed."""
        if ended := self.wait(seconds):
            return ended
        self.send(signal.SIGKILL)
        return self.wait(LIMIT_SECONDS) or Ended(exit_code=-signal.SIGKILL, seconds=seconds)

    def text(self) -> str:
        """What it wrote so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


def orphans(*, seconds: float = LEFT_OVER_SECONDS) -> list[str]:
    """Wait until no other child is left; the command lines of those that outlived the limit, which are killed then."""
    until = time.monotonic() + seconds
    while found := _children():
        _reap(found)
        if time.monotonic() > until:
            lines = [f"{pid}: {_command_line(pid)}" for pid in found]
            for pid in found:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return lines
        time.sleep(POLL_SECONDS)
    return []


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _reap(found: list[int]) -> None:
    for pid in found:
        os.waitpid(pid, os.WNOHANG)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")[:200]
    except FileNotFoundError:
        return "gone"


def _become(main: Callable[[], object], *, cwd: Path, log: Path, environment: dict[str, str], tell: int) -> None:
    """The child: run `main` as an interpreter would, to its exit code, and never return to the parent's code."""
    code = 70
    try:
        os.setsid()
        os.write(tell, b"1")
        os.close(tell)
        os.chdir(cwd)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(source, number)
        os.environ.update(environment)
        code = _exit_code(main)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  nothing of the child may get into the parent's code
        traceback.print_exc()
    finally:
        os._exit(code)


def _exit_code(main: Callable[[], object]) -> int:
    try:
        main()
    except SystemExit as end:
        code: Any = end.code
        return code if isinstance(code, int) else int(code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        return 130
    except Exception:  # noqa: BLE001  as an interpreter does at its end
        traceback.print_exc()
        return 1
    return 0
