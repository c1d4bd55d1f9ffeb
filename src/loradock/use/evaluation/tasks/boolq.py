"""Questions to be answered with true or false."""

from __future__ import annotations

from loradock.use.evaluation.tasks.base import Task

BOOLQ = Task(name="boolq", folder="boolq", words=("true", "false"))
"""BoolQ (Clark et al. 2019); LLM-Adapters' layout leaves out the passages."""
