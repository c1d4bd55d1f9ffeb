"""A door to the forking parent for lines that a shell runs: a program that starts in 30 ms, and is `loradock` there.

It hands over its arguments, folder, environment and three streams, and ends with the exit code of the forked command.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.forking import POLL_SECONDS, Forking

STREAMS = 3
LENGTH_BYTES = 8
PROGRAM = f"""\
import json, os, socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect(sys.argv[1])
request = json.dumps([os.getcwd(), sys.argv[2:], dict(os.environ)]).encode()
socket.send_fds(door, [len(request).to_bytes({LENGTH_BYTES}, "big")], range({STREAMS}))
door.sendall(request)
sys.exit(int(door.recv(64)))
"""
TAKE_STREAMS = """\
import os
for number, path in enumerate({paths}):
    os.dup2(os.open(path, os.O_WRONLY if number else os.O_RDONLY), number)
"""


@contextmanager
def door(forking: Forking) -> Iterator[list[str]]:
    """The command line that stands for `loradock` while the door is open."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        address = f"{folder}/door"
        program = Path(folder, "program.py")
        program.write_text(PROGRAM, encoding="utf-8")
        listening.bind(address)
        listening.listen()
        one_at_a_time = threading.Lock()

        def serve() -> None:
            while True:
                try:
                    connection = listening.accept()[0]
                except OSError:  # it was shut
                    return
                threading.Thread(target=answer, args=(forking, one_at_a_time, connection), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield [sys.executable, "-SE", str(program), address]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def answer(forking: Forking, one_at_a_time: threading.Lock, connection: socket.socket) -> None:
    """Start what a program asks for, wait for its end, and say its exit code."""
    with connection:
        head, streams, *_ = socket.recv_fds(connection, LENGTH_BYTES, STREAMS)
        try:
            with connection.makefile("rb") as content:
                place, arguments, environment = json.loads(content.read(int.from_bytes(head, "big")))
            paths = [f"/proc/{os.getpid()}/fd/{stream}" for stream in streams]
            with one_at_a_time:
                command = forking.start(Path(place), *arguments, code=TAKE_STREAMS.format(paths=paths), **environment)
                code = command.ended()
            while code is None:
                time.sleep(POLL_SECONDS)
                with one_at_a_time:
                    code = command.ended()
        finally:
            for stream in streams:
                os.close(stream)
        connection.sendall(str(code).encode())
