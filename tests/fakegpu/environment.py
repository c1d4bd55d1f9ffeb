"""The environment in which a command runs on the stand-in GPU: what `run` beside this file sets."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
PREFIX = "FAKEGPU_"
SETTINGS = frozenset(
    ("cc", "name", "memory", "taken", "context", "nvml_memory", "devices", "poison", "compute", "nan", "triton")
)
"""What describes the device; README.md beside this file says what each means."""


class CannotBeBuilt(Exception):
    """No compiler, or no CUDA headers."""


@cache
def built() -> Path:
    """The folder of the stand-in's libraries, compiled where that was not done yet."""
    done = subprocess.run([HERE / "build", sys.executable], capture_output=True, text=True)
    if done.returncode == os.EX_UNAVAILABLE:
        raise CannotBeBuilt(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def environment(**settings: object) -> dict[str, str]:
    """What to add to a process' environment: `environment(cc=75, memory=16 << 30, devices=2, poison=True)`."""
    unknown = settings.keys() - SETTINGS
    assert not unknown, f"the stand-in GPU has no setting {unknown}"
    libraries = built()
    before = {name: os.environ.get(name, "") for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH")}
    added = {
        "LD_PRELOAD": f"{libraries / 'libcuda.so.1'}:{libraries / 'libfakegpu-nccl.so'}",
        "LD_LIBRARY_PATH": str(libraries),
        "PYTHONPATH": str(HERE / "preload"),
    }
    found = {name: f"{value}:{before[name]}".rstrip(":") for name, value in added.items()}
    if settings.get("compute", True):
        found["FAKEGPU"] = "1"
    named = {PREFIX + name.upper(): str(int(v) if isinstance(v, bool) else v) for name, v in settings.items()}
    return {**found, "TRITON_LIBCUDA_PATH": str(libraries), **named}


def is_here() -> bool:
    """Whether this process runs on the stand-in."""
    return "libfakegpu" in os.environ.get("LD_PRELOAD", "")


def has_real_gpu() -> bool:
    """Whether a real GPU is here; on the stand-in there is none, as in the process that started this one."""
    import torch

    return not is_here() and torch.cuda.is_available()
