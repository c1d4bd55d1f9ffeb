"""By how much the chosen answers of rows are better: what is told of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from loradock.config.schema import RunConfig


def margin_notes(config: RunConfig, margins: np.ndarray[Any, Any]) -> list[str]:
    """Which margins pairs have ([pairs], 0 without), or that the objective reads none."""
    filled = margins[margins != 0]
    if not len(filled):
        return []
    if not config.objective_spec.reads_margins:
        return [f"margin: objective {config.objective} reads none of rows; objective reward does"]
    return [f"margins: {len(filled):,} of {len(margins):,} pairs have one, {filled.min():g} to {filled.max():g}"]
