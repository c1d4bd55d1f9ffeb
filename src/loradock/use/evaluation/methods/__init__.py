"""Ways to evaluate a row: choice by log-probability, greedy generation, LLM-Adapters' own, loss of the answer."""

from __future__ import annotations

from loradock.use.evaluation.methods.base import Method, Work, batches
from loradock.use.evaluation.methods.choice import Choice
from loradock.use.evaluation.methods.generate import Generate
from loradock.use.evaluation.methods.llm_adapters import LlmAdapters
from loradock.use.evaluation.methods.loss import Loss

__all__ = ["Choice", "Generate", "LlmAdapters", "Loss", "Method", "Work", "batches"]
