"""A sentence or plan with numbered ways to complete it."""

from __future__ import annotations

from loradock.use.evaluation.tasks.base import Task

PIQA = Task(name="piqa", folder="piqa", words=("solution1", "solution2"))
"""PIQA (Bisk et al. 2020)."""
HELLASWAG = Task(name="hellaswag", folder="hellaswag", words=("ending1", "ending2", "ending3", "ending4"))
"""HellaSwag (Zellers et al. 2019)."""
WINOGRANDE = Task(name="winogrande", folder="winogrande", words=("option1", "option2"))
"""WinoGrande (Sakaguchi et al. 2020)."""
