"""Which machine, which code and which packages a figure comes from."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "bitsandbytes",
    "accelerate",
    "triton",
    "liger-kernel",
    "flash-attn",
    "unsloth",
    "unsloth_zoo",
    "xformers",
)
ROOT = Path(__file__).parents[2]


def write(record: dict[str, Any], table: str, *, folder: Path) -> None:
    """A record with its `machine`, as JSON and with its table, in files named by the device; the table is printed."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^a-z0-9]+", "-", record["machine"]["device"].lower()).strip("-")
    (folder / f"{stem}.json").write_text(json.dumps(record) + "\n")
    (folder / f"{stem}.md").write_text(table)
    print(table)


def stack() -> dict[str, str]:
    """The packages of this process that are installed, with their versions."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit of this checkout, with a + where tracked files differ from it; "unknown" where git does not say."""
    command = ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
    try:
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip()


def processor() -> str:
    """The CPU's model name, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def described(asked: str = "auto") -> dict[str, Any]:
    """`kind` (cpu or cuda; auto: cuda where there is one), `device` (its name), CPUs, packages, commit and time."""
    import torch

    kind = ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked
    cpus = len(os.sched_getaffinity(0))
    return {
        "kind": kind,
        "device": torch.cuda.get_device_name() if kind == "cuda" else f"{processor()}, {cpus} CPUs",
        "cuda": torch.version.cuda if kind == "cuda" else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "stack": stack(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":  # in a process of its own, which leaves no memory of the card behind
    print(json.dumps(described(sys.argv[1])))
