"""Ways to evaluate a row: choice by log-probability, greedy generation, LLM-Adapters' own, loss of the answer."""

from __future__ import annotations

from loradock.evaluation.methods.base import Method, Work, batches
from loradock.evaluation.methods.choice import Choice
from loradock.evaluation.methods.generate import Generate
from loradock.evaluation.methods.llm_adapters import LlmAdapters
from loradock.evaluation.methods.loss import Loss

__all__ = ["Choice", "Generate", "LlmAdapters", "Loss", "Method", "Work", "batches"]
