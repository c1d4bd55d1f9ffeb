"""The table of objectives: what a run optimises. To add one: a module with an `Objective`, and its line here."""

from __future__ import annotations

from loradock.training.objectives.base import Objective
from loradock.training.objectives.supervised import Supervised

OBJECTIVES: dict[str, type[Objective]] = {"supervised": Supervised}
