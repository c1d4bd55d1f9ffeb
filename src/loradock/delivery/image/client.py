"""Runs what a build consists of: the docker client in a process group of its own, and containers that leave nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from loradock.delivery.image import labels
from loradock.errors import Interrupted

if TYPE_CHECKING:
    from docker import DockerClient

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 10.0


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """The first signal raises Interrupted in what runs inside; further ones do not disturb its cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_stopping = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if not is_stopping:
            is_stopping = True
            raise Interrupted(
                f"stopped by {signal.Signals(number).name}; nothing was built",
                hint="the same command continues: finished layers and wheels are kept",
            )

    handlers = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def run_client(
    command: Sequence[str], *, environment: Mapping[str, str], cwd: str, on_line: Callable[[str], None]
) -> int:
    """Run the client, hand over each line of its output, return its exit status; whatever happens, it ends first."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout or ():
                on_line(line)
            return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process group: first politely, so that the client cancels the build in the engine."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)


def run_container(
    client: DockerClient, image: str, command: Sequence[str], *, purpose: str, log: TextIO, **options: Any
) -> tuple[int, list[str]]:
    """Run a container with our label, its output copied to `log`; its status and its lines. It is gone after."""
    container = client.containers.create(image, list(command), labels={labels.CONTAINER: purpose}, **options)
    lines: list[str] = []
    partial_line = b""
    try:
        container.start()
        for chunk in container.logs(stream=True, follow=True):
            *parts, partial_line = (partial_line + chunk).split(b"\n")
            for line in (part.decode(errors="replace").rstrip("\r") for part in parts):
                log.write(line + "\n")
                lines.append(line)
        if partial_line:
            lines.append(partial_line.decode(errors="replace"))
            log.write(lines[-1] + "\n")
        log.flush()
        return int(container.wait()["StatusCode"]), lines
    finally:
        container.remove(force=True, v=True)
