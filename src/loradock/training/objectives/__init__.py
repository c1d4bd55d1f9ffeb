"""The table of objectives: what a run optimises. To add one: a module with a `base.Objective`, and its line here."""

from __future__ import annotations

import importlib

from loradock.training.objectives.base import Objective

OBJECTIVES = {"supervised": ("supervised", "Supervised")}


def objective_named(name: str) -> Objective:
    """The objective of a run: its libraries are imported here, not before."""
    module, kind = OBJECTIVES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
