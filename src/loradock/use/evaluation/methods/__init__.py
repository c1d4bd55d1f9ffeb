"""Ways to evaluate a row: choice by log-probability or reward, generation, calls, LLM-Adapters' own, the loss."""

from __future__ import annotations

from loradock.use.evaluation.methods.base import Method, Work, batches
from loradock.use.evaluation.methods.calls import Calls
from loradock.use.evaluation.methods.choice import Choice
from loradock.use.evaluation.methods.generate import Generate
from loradock.use.evaluation.methods.llm_adapters import LlmAdapters
from loradock.use.evaluation.methods.loss import Loss
from loradock.use.evaluation.methods.reward import Reward

__all__ = ["Calls", "Choice", "Generate", "LlmAdapters", "Loss", "Method", "Reward", "Work", "batches"]
