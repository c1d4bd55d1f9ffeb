"""Whether micro-steps are replayed from CUDA graphs, so that the card does not wait for the host."""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.optimizations.base import Decision, Question, asked

NAME = "cuda_graphs"


def decide(question: Question) -> Decision:
    """Only where asked for: no card has shown yet that they pay (docs/gpu.md)."""
    wanted = question.config.train.cuda_graphs
    obstacle = graph_obstacle(question)
    if wanted is True and obstacle:
        raise ConfigError(f"train.cuda_graphs cannot be used: {obstacle}", hint="--set train.cuda_graphs=auto")
    if wanted != "auto":
        return asked(NAME, wanted)
    why = obstacle or "they were never measured on a card; --set train.cuda_graphs=true tries them"
    return Decision(name=NAME, value=False, why=why)


def graph_obstacle(question: Question) -> str | None:
    """Why they cannot be used, or None."""
    if question.decided["engine"] != "fast":
        return "only the fast engine has static shapes"
    if not question.on_gpu:
        return "there is no card"
    if question.config.lora.dropout:
        return "dropout draws new masks for every micro-batch"
    return None
