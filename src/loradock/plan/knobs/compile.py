"""torch.compile of the peft backend's decoder layers: off unless asked for, refused where it is known to go wrong."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.errors import ConfigError
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision, Plan
from loradock.plan.trial import CLAIMED, ONE_SETTING, SHORT_RUN, Stated, Trial

NAME = "compile"
OFF = "off"
GAIN = Stated(low=1.0, high=1.25, source=f"{CLAIMED}: 15 to 25 % (docs/gpu.md, question 22)")


def decide(context: Context) -> Decision[str]:
    """Only what was asked for: no GPU has shown yet that it pays. Raises ConfigError where it cannot be."""
    setting = context.config.train.compile
    if setting == OFF:
        why = "not asked for: compiling takes a minute or more, and does not speed up products with 4-bit weights"
        return Decision(name=NAME, value=OFF, why=why)
    for obstacle, remedy in obstacles(context):
        raise ConfigError(f"train.compile {setting} cannot be used: {obstacle}", hint=f"--set {remedy}")
    return asked(NAME, setting)


def obstacles(context: Context) -> Iterator[tuple[str, str]]:
    """Why the mode that was asked for cannot be used, each with a setting to type."""
    config, mode = context.config, context.config.train.compile
    if config.lora.dora:
        yield "DoRA dequantises in ways that split a layer into dozens of graphs", "train.compile=off"
    if config.model.storage.has_outlier_columns and context.on_gpu:
        yield (
            "int8 layers take columns apart by what is in them, which was never verified for compiled runs",
            "train.compile=off",
        )
    if config.deterministic and context.on_gpu:
        yield "the compiler picks kernels by their time, so a rerun may round differently", "train.compile=off"
    if mode == "max-autotune" and not context.on_gpu:
        yield (
            "it picks kernels by their time, and reruns on a CPU are promised to be identical",
            "train.compile=default",
        )
    if mode == "reduce-overhead":
        yield from ((why, "train.compile=default") for why in graph_obstacles(context))


def graph_obstacles(context: Context) -> Iterator[str]:
    """Why micro-batches cannot be replayed from the CUDA graphs that reduce-overhead records."""
    data = context.data
    if not context.on_gpu:
        yield "it records CUDA graphs, and there is no GPU"
    if context.plan.packing.value:
        yield "it records a CUDA graph for every length, and packs differ in length"
    if data.mean_tokens < data.longest_tokens:
        yield (
            f"it records a CUDA graph for every length, and rows have {data.mean_tokens:.0f} tokens on average of "
            f"{data.longest_tokens}"
        )
    if context.plan.accumulation.value > 1 or context.samples_per_rank % context.plan.micro_batch.value:
        yield "gradients of one pass lie in the memory that the next pass of the step is replayed in"


def propose(context: Context) -> tuple[Trial, ...]:
    """On where it is off, and the other way; the fast engine has nothing to compile."""
    config = context.config
    if not context.engine.has_compile:
        return ()
    is_off = config.train.compile == OFF
    engine_setting = (f"engine={context.engine.name}",) if config.engine == "auto" else ()
    choice = "default" if is_off else OFF
    return (
        Trial(
            name=f"compile-{choice}",
            title="decoder layers compiled" if is_off else f"eager layers instead of {config.train.compile}",
            settings=(f"train.compile={choice}", *engine_setting),
            cause="layers run operator by operator" if is_off else "compiling, or the compiled code",
            phase="passes",
            price="the first step waits a minute or more for the compiler" if is_off else "",
            stability_risk="moderate" if is_off else "none",
            effort="a short run first" if is_off else "one setting",
            minutes=SHORT_RUN if is_off else ONE_SETTING,
            debugging="hard" if is_off else "easy",
        ),
    )


def gains(baseline: Plan, _after: Plan) -> bool:
    """Compiled, where nothing was."""
    return baseline.compile.value == OFF
