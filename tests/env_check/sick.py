"""Checks that crash, hang, raise, or leave something behind, for the runner; a child process imports them from here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from loradock.env_check.base import Check, Finding, Intent, Level, Look, ok
from loradock.facts import Facts
from loradock.machine import Host


def well(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    return [ok(f"process {os.getpid()}")]


def crash(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    sys.stderr.write("the last words\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def leave(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    os._exit(3)


def allocator(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    return [ok(os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "torch's own"))]


def read(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Seven seconds on a disk that gives a MiB in a quarter of one."""
    with open("/dev/zero", "rb", buffering=0) as disk:
        for _ in range(28):
            disk.read(1 << 20)
            time.sleep(0.25)
    return [ok("all was read")]


def hang(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    child = subprocess.Popen(["sleep", "600"])
    plan.output.write_text(str(child.pid), encoding="utf-8")
    time.sleep(600)
    return []


def fail(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    raise ValueError("seven\nlines")


def speak(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    sys.stdout.write("a library says hello\n")
    subprocess.run(["echo", "so does its child"], check=True)
    return [ok("spoke")]


def slow(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    time.sleep(1.5)
    return [ok("slept")]


def check(look: Look, *, level: Level = "quick", limit_seconds: float = 20.0, is_beside: bool = False) -> Check:
    return Check(
        name=look.__name__,
        group="system",
        proves="nothing",
        look=look,
        level=level,
        limit_seconds=limit_seconds,
        is_beside=is_beside,
    )
