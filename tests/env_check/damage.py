"""Libraries damaged for one process (tests/env_check/wrenches), and where the installed ones lie."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

WRENCHES = Path(__file__).with_name("wrenches")


def damaged(*names: str) -> dict[str, str]:
    """The environment of a process whose libraries are damaged so."""
    path = os.pathsep.join([str(WRENCHES), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "LORADOCK_WRENCHES": " ".join(names), "OMP_NUM_THREADS": "2"}


def package(name: str) -> Path:
    """The folder of an installed package."""
    spec = importlib.util.find_spec(name)
    assert spec
    assert spec.origin
    return Path(spec.origin).parent
