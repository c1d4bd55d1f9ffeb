"""The table of backends. To add one: a module with a `base.Backend`, its line here, and an `Engine` in the catalog."""

from __future__ import annotations

import importlib

from loradock.training.backends.base import Backend

BACKENDS = {
    "fast": ("fast.backend", "FastBackend"),
    "peft": ("peft.backend", "PeftBackend"),
    "fsdp": ("fsdp.backend", "FsdpBackend"),
    "zero": ("zero.backend", "ZeroBackend"),
}


def backend_named(name: str) -> type[Backend]:
    """The backend that the plan decided on: its libraries are imported here, not before."""
    module, kind = BACKENDS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)
