"""A process for each measurement, forked from this one, which has the libraries imported: a start costs no seconds.

Forking is sound as long as this process has started no thread and touched no GPU (`preload` sees to it). A child that
runs out of memory, crashes or hangs is a result in words. It leads a session of its own, so that Ctrl-C reaches only
this process, which ends it; it also ends when this process does, however that was.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.analysis.diagnose.measure import Failed
from loradock.errors import EnvironmentUnfit, LoradockError, OutOfMemory
from loradock.process import signals, termination_log
from loradock.text import redact

BEFORE_IMPORT = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "agg",
}
"""So that looking for a GPU does not touch it, and that imports start no thread."""
HARMLESS = (
    "torch",
    "transformers",
    "datasets",
    "accelerate",
    "loradock.training.preparation",
    "loradock.analysis.diagnose.attempt",
)
ASKING_THE_GPU = (
    "bitsandbytes",
    "peft",
    "trl",
    "loradock.training.backends.fast.backend",
    "loradock.training.backends.peft.backend",
)
"""What may look at a GPU when it is imported: left to the children where there is one."""
REMEMBERED = ("llama",)
"""Any kind of model whose weights' names transformers looks up: it makes the table of all kinds once, in 0.5 s."""
ANSWER = "answer"
LOG = "log"
POLL_SECONDS = 0.5
SHOWN_LETTERS = 300
FATAL = "Fatal Python error: "
MEMORY_WORDS = ("CUDA out of memory", "OutOfMemoryError", "MemoryError", "cannot allocate memory", "std::bad_alloc")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a child found, and the largest resident set that it or one of its own children had."""

    value: Any
    peak_bytes: int


def preload(*, has_gpu: bool) -> None:
    """Import what every child needs. EnvironmentUnfit where that touched the GPU, which then cannot be shared."""
    for name, value in BEFORE_IMPORT.items():
        os.environ.setdefault(name, value)
    for name in (*HARMLESS, *(() if has_gpu else ASKING_THE_GPU)):
        importlib.import_module(name)
    for name in REMEMBERED:
        with contextlib.suppress(ImportError, AttributeError, TypeError):  # a library's own affair, and only time
            importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping(name)
    gc.collect()
    gc.freeze()  # a child need not look through, and so copy, what is here
    if has_gpu and importlib.import_module("torch").cuda.is_initialized():
        raise EnvironmentUnfit(
            "importing the libraries initialised CUDA, so trials cannot be forked",
            hint="unset PYTHONSTARTUP, remove sitecustomize.py, and try again",
        )


def run(work: Callable[[], object], *, folder: Path, limit_seconds: float) -> Answer | Failed:
    """Do the work in a child; what it returns is pickled. A KeyboardInterrupt here ends the child, too."""
    with signals.held():
        parent = os.getpid()
        child = os.fork()
        if not child:
            _become(work, folder=folder, parent=parent)
    try:
        usage, code = _wait(child, limit_seconds=limit_seconds)
    except BaseException:
        _kill(child)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
        raise
    if code is None:
        return Failed(kind="too slow", words=f"no end within {limit_seconds:.0f} s", exit_code=-signal.SIGKILL)
    if code == 0 and (folder / ANSWER).exists():
        return Answer(value=pickle.loads((folder / ANSWER).read_bytes()), peak_bytes=usage.ru_maxrss << 10)
    return failed(code, (folder / LOG).read_text(encoding="utf-8", errors="replace"))


def failed(code: int, log: str) -> Failed:
    """How a child came to nothing, by its exit code (negative: the signal that ended it) and what it wrote."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith(("error: ", FATAL))]
    last = (errors or lines or ["no output"])[-1]
    reason = redact.without(last, redact.of(os.environ))[:SHOWN_LETTERS]
    if code < 0:
        reason = f"ended by {signal.Signals(-code).name}: {reason}"
    is_full = code == OutOfMemory.exit_code or any(phrase.lower() in log.lower() for phrase in MEMORY_WORDS)
    if code == -signal.SIGKILL:
        is_full, reason = True, f"killed, probably out of memory: {reason}"
    return Failed(kind="out of memory" if is_full else "failed", words=reason, exit_code=code)


def _wait(child: int, *, limit_seconds: float) -> tuple[Any, int | None]:
    """Its resource usage and exit code; None for one that was ended at the limit."""
    until = time.monotonic() + limit_seconds
    handle = os.pidfd_open(child)
    try:
        while not select.select([handle], [], [], POLL_SECONDS)[0]:
            if time.monotonic() > until:
                _kill(child)
                return os.wait4(child, 0)[2], None
    finally:
        os.close(handle)
    _, status, usage = os.wait4(child, 0)
    return usage, os.waitstatus_to_exitcode(status)


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def _become(work: Callable[[], object], *, folder: Path, parent: int) -> None:
    """The child: do the work, leave the answer, never return."""
    code = LoradockError.exit_code
    try:
        os.setsid()
        signals.die_with_parent()
        if os.getppid() != parent:
            os._exit(code)
        _alone(folder)
        answer = work()
        (folder / ANSWER).write_bytes(pickle.dumps(answer))
        code = 0
    except BaseException as problem:  # noqa: BLE001  nothing of the child may get into the parent's code
        from loradock.training.endings import as_loradock_error  # the engine's rooms: imported after `preload`

        traceback.print_exc()
        error = as_loradock_error(problem, folder, has_committed=False)
        print(error, file=sys.stderr)  # noqa: T201  the child's own log
        code = error.exit_code
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _alone(folder: Path) -> None:
    """Output into the log, signals as for any process, nothing of the parent's surroundings."""
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    faulthandler.enable()
    for number in signals.SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)
    os.environ.pop("LORADOCK_HEARTBEAT", None)
    os.environ[termination_log.ENVIRONMENT] = str(folder / "termination")
