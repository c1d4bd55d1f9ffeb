"""Whether micro-steps are replayed from CUDA graphs, so that the GPU does not wait for the host.

A replay spares the host's work for a micro-step, which does not depend on its tokens, and nothing of the GPU's. So it
pays where the GPU is done before the host has launched the next kernels: in small micro-batches.
"""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.plan import throughput
from loradock.plan.context import Decision, Question, asked
from loradock.plan.memory.fast import Shape

NAME = "cuda_graphs"
MARGIN = 1.25
"""By how much the host has to be slower: graphs fill batches up to a few shapes, which is a sixteenth on average, and
neither side's milliseconds were measured on a GPU."""
MOVING = ("activations", "in flight", "batch")


def decide(question: Question) -> Decision:
    """On where the host is expected to be slower than the GPU by a margin, and memory has room for their buffers."""
    wanted = question.config.train.cuda_graphs
    obstacle = graph_obstacle(question)
    if wanted is True and obstacle:
        raise ConfigError(f"train.cuda_graphs cannot be used: {obstacle}", hint="--set train.cuda_graphs=auto")
    if wanted != "auto":
        return asked(NAME, wanted)
    if obstacle := obstacle or _attention_obstacle(question):
        return Decision(name=NAME, value=False, why=obstacle)
    shape = _shape(question)
    host, gpu = 1e3 * throughput.fast_host_seconds(question.model.layers, shape), 1e3 * _gpu_seconds(question, shape)
    times = f"a micro-step is expected to take the host {host:.0f} ms and the GPU {gpu:.0f} ms"
    if host <= MARGIN * gpu:
        return Decision(name=NAME, value=False, why=f"{times}: launches keep ahead")
    parts = question.fast_memory.parts(shape)
    need, have = parts["total"] + sum(parts[part] for part in MOVING), question.memory_bytes
    if need > have:
        sizes = f"{need / 2**30:.1f} of {have / 2**30:.1f} GiB"
        return Decision(name=NAME, value=False, why=f"{times}, but with buffers of their own they need {sizes}")
    return Decision(name=NAME, value=True, why=f"{times}: a replay spares the host's")


def graph_obstacle(question: Question) -> str | None:
    """Why they cannot be used, or None."""
    if question.decided["engine"] != "fast":
        return "only the fast engine has static shapes"
    if not question.on_gpu:
        return "there is no GPU"
    if question.config.lora.dropout:
        return "dropout draws new masks for every micro-batch"
    return None


def _attention_obstacle(question: Question) -> str | None:
    return None if question.has_flash else "attention is computed document by document, whose launches differ"


def _shape(question: Question) -> Shape:
    decided = question.decided
    return Shape(
        tokens=decided["micro_batch"] * question.row_tokens,
        checkpointed=decided["checkpointed_layers"],
        cached=decided["cached_layers"],
    )


def _gpu_seconds(question: Question, shape: Shape) -> float:
    """Of one micro-step of a mean optimiser step."""
    memory, tokens = question.fast_memory, question.step_tokens / question.passes(shape.tokens)
    parts = throughput.fast_seconds(
        memory.widths, shape, memory.setting, tokens=tokens, rows=question.rows, rates=question.rates
    )
    return sum(parts.values())
