"""torch.compile of the TRL engine's decoder layers: off unless asked for, refused where it is known to go wrong."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.errors import ConfigError
from loradock.plan.context import Decision, Question, asked

NAME = "compile"
OFF = "off"


def decide(question: Question) -> Decision:
    """Only what was asked for: no card has shown yet that it pays. Raises ConfigError where it cannot be."""
    wanted = question.config.train.compile
    if wanted == OFF:
        why = "not asked for: compiling takes a minute or more, and products with 4-bit weights stay as they are"
        return Decision(name=NAME, value=OFF, why=why)
    for obstacle, remedy in obstacles(question):
        raise ConfigError(f"train.compile {wanted} cannot be used: {obstacle}", hint=f"--set {remedy}")
    return asked(NAME, wanted)


def obstacles(question: Question) -> Iterator[tuple[str, str]]:
    """Why the mode that was asked for cannot be used, each with a setting to type."""
    config, mode = question.config, question.config.train.compile
    if config.lora.dora:
        yield "DoRA unpacks 4-bit weights in ways that cut a layer into dozens of graphs", "train.compile=off"
    if config.model.quantization == "int8" and question.on_gpu:
        yield (
            "int8 layers take columns apart by what is in them, which no compiled run has been held to",
            "train.compile=off",
        )
    if config.deterministic and question.on_gpu:
        yield "the compiler picks kernels by their time, so a rerun may round otherwise", "train.compile=off"
    if mode == "max-autotune" and not question.on_gpu:
        yield (
            "it picks kernels by their time, and reruns on a CPU are promised to be identical",
            "train.compile=default",
        )
    if mode == "reduce-overhead":
        yield from ((why, "train.compile=default") for why in graph_obstacles(question))


def graph_obstacles(question: Question) -> Iterator[str]:
    """Why micro-batches cannot be replayed from the CUDA graphs that reduce-overhead records."""
    data, decided = question.data, question.decided
    if not question.on_gpu:
        yield "it records CUDA graphs, and there is no card"
    if decided["packing"]:
        yield "it records a CUDA graph for every length, and packs differ in length"
    if data.mean_tokens < data.longest_tokens:
        yield (
            f"it records a CUDA graph for every length, and rows have {data.mean_tokens:.0f} tokens on average of "
            f"{data.longest_tokens}"
        )
    if decided["accumulation"] > 1 or question.samples_per_rank % decided["micro_batch"]:
        yield "gradients of one pass lie in the memory that the next pass of the step is replayed in"
