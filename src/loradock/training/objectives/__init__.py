"""The table of objectives: what a run optimises. To add one: a module with a `base.Objective`, and its line here."""

from __future__ import annotations

import importlib

from loradock.config.schema import RunConfig
from loradock.training.objectives.base import Objective


def objective_of(config: RunConfig) -> Objective:
    """The objective of a run: its libraries are imported here, not before."""
    module, kind = config.objective_spec.computed_by.split(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)(config)
