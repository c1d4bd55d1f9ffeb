"""The process of one tracker: `python -m loradock.training.observers.tracker_process CHANNEL`, the number of a socket.

Standard input has what to open, as JSON. Messages are JSON, one a packet: to this process `{"step", "values"}` and
`{"end": STATUS}`; back, for the opening and for each of them, `{"is_taken", "problem"}`.
A trainer that dies closes the channel: the tracker's run has failed then, and this process ends.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from loradock.process.signals import SIGNALS
from loradock.text.terminal import first_line
from loradock.training.observers import trackers

LONGEST_MESSAGE = 1 << 20
MOST_WAITING = 10_000
"""Lines that are kept while the tracker does not answer; what comes after is dropped."""
ORPHAN_SECONDS = 30
"""To finish in, once the trainer is gone."""
LOST: dict[str, Any] = {"end": "failed"}


def serve(channel: socket.socket, *, given: dict[str, Any]) -> None:
    """Open the tracker, hand it every line, and finish it. A line that it does not take is passed over."""
    waiting: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=receive, args=(channel, waiting), daemon=True).start()
    opening = partial(trackers.opened, **given | {"directory": Path(given["directory"])})
    tracker = attempt(channel, opening, told=f"tracker {given['name']} does not open")
    if tracker is None:
        return
    while "end" not in (line := waiting.get()):
        taking = partial(tracker.log, line["values"], step=line["step"])
        attempt(channel, taking, told=f"tracker {given['name']} failed at step {line['step']}")
    ending = partial(trackers.finish, tracker, has_failed=line["end"] != "finished")
    attempt(channel, ending, told=f"tracker {given['name']} did not finish")


def attempt(channel: socket.socket, work: Callable[[], Any], *, told: str) -> Any:
    """What the tracker's library makes of it, and the trainer is told; None where it failed."""
    try:
        made = work()
    except Exception as failure:  # noqa: BLE001  a server that is away must not cost a training
        first = first_line(failure)
        answer(channel, {"is_taken": False, "problem": f"{told}: {first}"})
        return None
    answer(channel, {"is_taken": True})
    return made


def receive(channel: socket.socket, waiting: queue.Queue[dict[str, Any]]) -> None:
    """Take messages off the channel as they come, so that the trainer's side is never full."""
    while message := channel.recv(LONGEST_MESSAGE):
        line = json.loads(message)
        if waiting.qsize() < MOST_WAITING or "end" in line:
            waiting.put(line)
        else:
            answer(channel, {"is_taken": False})
    signal.alarm(ORPHAN_SECONDS)  # the trainer is gone; what hangs now would stay for ever
    waiting.put(LOST)


def answer(channel: socket.socket, message: dict[str, Any]) -> None:
    """Say something to the trainer, which may be gone."""
    with suppress(BrokenPipeError, ConnectionResetError):
        channel.send(json.dumps(message).encode())


if __name__ == "__main__":
    for number in SIGNALS:  # Slurm sends them to every process; this one ends with the trainer
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # a line for each retry; one problem is told
    serve(socket.socket(fileno=int(sys.argv[1])), given=json.load(sys.stdin))
    os._exit(0)  # exit handlers of the libraries would wait for their servers once more
