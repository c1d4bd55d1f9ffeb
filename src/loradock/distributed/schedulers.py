"""Slurm's and SkyPilot's variables, as torchrun's: `srun loradock train` needs no launcher, `launch` no options.

Names and meanings: Slurm's srun(1), "OUTPUT ENVIRONMENT VARIABLES", and SkyPilot's "Environment variables" page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PORT = 29500
PORTS = 1000
"""Two job steps of one host meet at different ports, but for one pair in a thousand."""


def rank_of_step(environ: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variables for this task of a Slurm step with several tasks; empty elsewhere, or where RANK is set."""
    tasks, nodes = number(environ, "SLURM_STEP_NUM_TASKS"), environ.get("SLURM_STEP_NODELIST", "")
    if "RANK" in environ or (tasks or 0) < 2 or not nodes or "SLURM_PROCID" not in environ:
        return {}
    return {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": environ.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": first_number(environ.get("SLURM_STEP_TASKS_PER_NODE", "1")),
        "MASTER_ADDR": first_host(nodes),
        "MASTER_PORT": str(PORT + (number(environ, "SLURM_JOB_ID") or 0) % PORTS),
    }


def meeting(environ: Mapping[str, str]) -> str | None:
    """HOST:PORT of the first node, where SkyPilot or a Slurm job step of several nodes names it."""
    if addresses := environ.get("SKYPILOT_NODE_IPS", "").split():
        return f"{addresses[0]}:{PORT}" if len(addresses) > 1 else None
    if (number(environ, "SLURM_STEP_NUM_NODES") or 1) > 1 and (nodes := environ.get("SLURM_STEP_NODELIST")):
        return f"{first_host(nodes)}:{PORT + (number(environ, 'SLURM_JOB_ID') or 0) % PORTS}"
    return None


def first_host(nodes: str) -> str:
    """The first host of a Slurm list: `gpu[07-09,12],cpu1` -> `gpu07`."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def first_number(counts: str) -> str:
    """Of `4(x2),3` the 4."""
    match = re.match(r"\d+", counts)
    return match[0] if match else "1"


def number(environ: Mapping[str, str], name: str) -> int | None:
    """A whole number; None where there is none."""
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None
