"""Whether micro-steps are replayed from CUDA graphs, so that the GPU does not wait for the host.

A replay saves the host's work for a micro-step, which does not depend on its tokens, and nothing of the GPU's. So it
pays where the GPU is done before the host has launched the next kernels: in small micro-batches.
"""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.plan import throughput
from loradock.plan.context import Context, asked
from loradock.plan.memory.fast import Shape
from loradock.plan.plan import Decision
from loradock.plan.trial import ONE_SETTING, SHORT_RUN, Trial

NAME = "cuda_graphs"
MARGIN = 1.25
"""By how much the host has to be slower: graphs fill batches up to a few shapes, which is a sixteenth on average, and
the host's milliseconds are those of one machine."""
MOVING = ("activations", "in flight", "batch")


def decide(context: Context) -> Decision[bool]:
    """On where the host is expected to be slower than the GPU by a margin, and memory has space for their buffers."""
    setting = context.config.train.cuda_graphs
    obstacle = graph_obstacle(context)
    if setting is True and obstacle:
        raise ConfigError(f"train.cuda_graphs cannot be used: {obstacle}", hint="--set train.cuda_graphs=auto")
    if setting != "auto":
        return asked(NAME, setting)
    if obstacle := obstacle or _attention_obstacle(context):
        return Decision(name=NAME, value=False, why=obstacle)
    shape = _shape(context)
    host, gpu = (
        1e3 * throughput.fast_host_seconds(context.fast_memory.widths, shape),
        1e3 * _gpu_seconds(context, shape),
    )
    times = f"a micro-step is expected to take the host {host:.0f} ms and the GPU {gpu:.0f} ms"
    if host <= MARGIN * gpu:
        return Decision(name=NAME, value=False, why=f"{times}: launches keep ahead")
    parts = context.fast_memory.parts(shape)
    need, have = parts["total"] + sum(parts[part] for part in MOVING), context.memory_bytes
    if need > have:
        sizes = f"{need / 2**30:.1f} of {have / 2**30:.1f} GiB"
        return Decision(name=NAME, value=False, why=f"{times}, but with their own buffers they need {sizes}")
    return Decision(name=NAME, value=True, why=f"{times}: a replay saves the host time")


def graph_obstacle(context: Context) -> str | None:
    """Why they cannot be used, or None."""
    if not context.engine.has_cuda_graphs:
        return "only the fast engine has static shapes"
    if not context.on_gpu:
        return "there is no GPU"
    if context.model.experts:
        return "a mixture's launches vary with what its routers choose"
    if context.model.recurrence:
        return "launches of its recurrent layers vary with the documents"
    return None


def _attention_obstacle(context: Context) -> str | None:
    if context.has_flash and not context.fast_memory.has_wide_heads:
        return None
    return "attention runs document by document, with varying launches"


def _shape(context: Context) -> Shape:
    return Shape(
        tokens=context.plan.micro_batch.value * context.row_tokens,
        checkpointed=context.plan.checkpointed_layers.value,
        cached=context.plan.cached_layers.value,
    )


def _gpu_seconds(context: Context, shape: Shape) -> float:
    """Of one micro-step of a mean optimiser step."""
    memory, tokens = context.fast_memory, context.step_tokens / context.passes(shape.tokens)
    parts = throughput.fast_seconds(
        memory.widths, shape, memory.setting, tokens=tokens, rows=context.rows, rates=context.rates
    )
    return sum(parts.values())


def propose(context: Context) -> tuple[Trial, ...]:
    """The other way than now, with the fast engine on a GPU."""
    plan = context.plan
    if not context.engine.has_cuda_graphs or plan.device.value != "cuda":
        return ()
    is_on = plan.cuda_graphs.value
    return (
        Trial(
            name="cuda-graphs-off" if is_on else "cuda-graphs-on",
            title="kernels launched one by one" if is_on else "micro-steps replayed from CUDA graphs",
            settings=(f"train.cuda_graphs={'false' if is_on else 'true'}",),
            cause="recording graphs" if is_on else "the GPU waits for the host to launch kernels",
            phase="passes",
            stability_risk="none" if is_on else "moderate",
            effort="one setting" if is_on else "a short run first",
            minutes=ONE_SETTING if is_on else SHORT_RUN,
            debugging="easy" if is_on else "hard",
        ),
    )
