"""What computes. To add one: a module with a `base.Backend`, and its `Engine` in `catalog/engines`."""

from __future__ import annotations

import importlib

from loradock.catalog import engines
from loradock.training.backends.base import Backend


def backend_named(name: str) -> type[Backend]:
    """The backend that the plan decided on: its libraries are imported here, not before."""
    module, kind = engines.of(name).computed_by.split(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)
