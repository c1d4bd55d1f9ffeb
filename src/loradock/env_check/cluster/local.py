"""Several ranks on this machine without a launcher: processes of their own, as torchrun would start them."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence

from loradock.errors import EnvironmentUnfit
from loradock.process import python

LEAVE_SECONDS = 15.0
POLL_SECONDS = 0.1
LOOPBACK = "127.0.0.1"


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `loradock net-check ARGUMENTS` as so many ranks; the exit code of rank 0. None of them outlives this call."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
    }
    command = python.command("-m", "loradock", "net-check", *arguments)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            # gloo's choice by the name of the host is of no interest on one machine.
            environ = {"GLOO_SOCKET_IFNAME": "lo"} | dict(os.environ) | shared | variables
            ranks.append(subprocess.Popen(command, env=environ))
        code = ranks[0].wait()
        until = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < until and any(process.poll() is None for process in ranks):
            time.sleep(POLL_SECONDS)
    except OSError as failure:
        raise EnvironmentUnfit(f"no further process can be started: {failure.strerror}", hint="ulimit -u") from failure
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
            process.wait()
    return code if code >= 0 else EnvironmentUnfit.exit_code
