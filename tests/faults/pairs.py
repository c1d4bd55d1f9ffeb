"""Several processes of one run, forked, with the environment that a launcher gives; on one host, or on two made here.

A host of its own is a network namespace with a name: its processes reach the others over a virtual cable alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults.forking import Command, Forking
from proven import unchecked

STEPS, SAVE_EVERY = 12, 4
RUN = (
    f"train.max_steps={STEPS}",
    f"checkpoints.every={SAVE_EVERY}",
    "checkpoints.keep=9",
    "train.global_batch=8",
    "train.micro_batch=2",
    "train.workers=0",
    "data.max_length=64",
    "logging.every=1",
    "lora.rank=4",
    "lora.dropout=0.1",
)
# Slow enough for a signal to come in between; the order of all that is computed stays what it is.
SLOW = """
import time
from loradock.training.cadence import Flow
real = Flow.after
def after(self, step):
    time.sleep(0.2)
    return real(self, step)
Flow.after = after
"""
PORT = 29555
"""In namespaces that nobody else is in."""
RUN_SECONDS = 240.0
"""For a whole run: many times what it takes on two processors that others use."""
ENDS_SECONDS = 60.0
"""For an end after a fault that is told at once, or after `limits.peer_seconds` of a few seconds."""


@dataclass(frozen=True)
class Pair:
    """Processes of a run in the folder; `launcher` is what a signal to the run goes to."""

    folder: Path
    launcher: Sequence[Command]
    ranks: Sequence[Command]

    def text(self) -> str:
        return "".join(each.text() for each in self.launcher)

    def reached(self, step: int) -> bool:
        """Wait until a step was made."""
        return self.launcher[0].wait_until(lambda: f"step {step}/" in self.text(), seconds=RUN_SECONDS)

    def finish(self, *, seconds: float = RUN_SECONDS) -> list[int]:
        return [each.finish(seconds=seconds) for each in self.launcher]

    def lose(self, ranks: Collection[int]) -> None:
        """SIGKILL to these ranks."""
        for rank in ranks:
            self.ranks[rank].send(signal.SIGKILL)

    def kill(self) -> None:
        """What a test that failed has left."""
        for each in self.ranks:
            if each.ended() is None:
                each.send(signal.SIGKILL)


Start = Callable[..., Pair]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def arguments(model: Path, data: Path, *settings: str, engine: str) -> list[str]:
    """Those of the run, for `loradock`."""
    sets = [word for setting in (*RUN, f"engine={engine}", *settings) for word in ("--set", setting)]
    inputs = ("--model", str(model), "--data", str(data), "--output", "out")
    return ["train", *inputs, unchecked("two processes at once"), *sets]


def begun(
    forking: Forking,
    folder: Path,
    words: Sequence[str],
    *,
    code: str = "",
    count: int = 2,
    hosts: Sequence[str] = (),
    **environment: str,
) -> Pair:
    """`loradock WORDS` as `count` processes; with `hosts` (made by `two_hosts`) as many on each."""
    folder.mkdir(exist_ok=True)
    on_each = count // max(1, len(hosts))
    sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(on_each)}
    meeting = {"MASTER_ADDR": "10.77.0.1" if hosts else "127.0.0.1", "MASTER_PORT": str(PORT if hosts else free_port())}
    each = {**sizes, **meeting, **({"GLOO_SOCKET_IFNAME": "cable"} if hosts else {}), **environment}
    ranks = []
    for rank in range(count):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank % on_each)}
        moved = MOVE.format(host=hosts[rank // on_each]) if hosts else ""
        ranks.append(forking.start(folder, *words, code=moved + code, **each, **place))
    return Pair(folder, launcher=ranks, ranks=ranks)


MOVE = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
assert libc.setns(os.open("/run/netns/{host}", os.O_RDONLY), 0x40000000) == 0
assert libc.unshare(0x04000000) == 0
socket.sethostname("{host}")
"""
"""In a forked process: into the network namespace of a host, with its name."""


@contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them (10.77.0.1 and 10.77.0.2); their names. Skips without them."""
    names = (f"host-a-{os.getpid()}", f"host-b-{os.getpid()}")
    commands = [f"ip netns add {name}" for name in names]
    commands.append(f"ip link add cable netns {names[0]} type veth peer name cable netns {names[1]}")
    for number, name in enumerate(names, start=1):
        commands.append(f"ip -n {name} addr add 10.77.0.{number}/24 dev cable")
        commands += [f"ip -n {name} link set {device} up" for device in ("lo", "cable")]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if "not permitted" in done.stderr or "denied" in done.stderr:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
            assert not done.returncode, done.stderr
        yield names
    except FileNotFoundError:
        pytest.skip("no network namespaces here: ip is not installed")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def cut(host: str) -> None:
    """Pull the cable: nothing is said to anybody."""
    subprocess.run(["ip", "-n", host, "link", "set", "cable", "down"], check=True)


def adapter(folder: Path) -> bytes:
    return (folder / "out" / "adapter" / "adapter_model.safetensors").read_bytes()


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "out" / name).read_text(encoding="utf-8"))


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The metric lines of a kind."""
    text = (folder / "out" / "metrics.jsonl").read_text(encoding="utf-8")
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]
