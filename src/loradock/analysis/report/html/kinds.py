"""The table of charts: what each shows, of which lines of a run, in which unit. To add one: its line in KINDS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loradock.analysis.report.html.series import Look

Source = Literal["train", "evaluations", "samples"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One curve of a chart: where its values come from. `smoothing` adds the smoothed one, the raw one faint."""

    name: str
    key: str
    source: Source = "train"
    look: Look = "line"
    smoothing: bool = False


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A chart: values are multiplied by `scale` to be in `unit`. Those of the monitor lie over minutes, not steps.

    `needs_more_than_zero`: it says nothing where all is zero.
    """

    name: str
    title: str
    unit: str
    curves: tuple[Curve, ...]
    scale: float = 1.0
    is_from_zero: bool = True
    needs_more_than_zero: bool = False


def sampled(name: str, key: str) -> Curve:
    """A curve of the monitor's."""
    return Curve(name=name, key=key, source="samples")


def both(key: str) -> tuple[Curve, ...]:
    """What each step gave under a key, and each evaluation."""
    return (
        Curve(name="training", key=key, smoothing=True),
        Curve(name="evaluation", key=key, source="evaluations", look="dots"),
    )


GIB, MIB = 2.0**-30, 2.0**-20
KINDS = (
    Kind(
        name="loss",
        title="Loss",
        unit="nats",
        is_from_zero=False,
        curves=both("loss"),
    ),
    Kind(
        name="contrastive-loss",
        title="Contrastive loss",
        unit="nats a query",
        is_from_zero=False,
        curves=both("embedding_loss"),
    ),
    Kind(
        name="generative-loss",
        title="Generative loss",
        unit="nats",
        is_from_zero=False,
        curves=both("generative_loss"),
    ),
    Kind(
        name="in-batch-accuracy",
        title="Queries whose positive is first in the step",
        unit="%",
        scale=100,
        curves=both("in_batch_accuracy"),
    ),
    Kind(
        name="preference-accuracy",
        title="Pairs whose chosen answer has the larger reward",
        unit="%",
        scale=100,
        curves=both("preference_accuracy"),
    ),
    Kind(
        name="reward-margin",
        title="Reward of the chosen answer over the rejected one",
        unit="nats",
        is_from_zero=False,
        curves=both("reward_margin"),
    ),
    Kind(
        name="log-probabilities",
        title="Log-probability of the answers",
        unit="nats an answer",
        is_from_zero=False,
        curves=(
            Curve(name="chosen", key="chosen_log_probability", smoothing=True),
            Curve(name="rejected", key="rejected_log_probability", smoothing=True),
        ),
    ),
    Kind(name="rate", title="Learning rate", unit="", curves=(Curve(name="learning rate", key="learning_rate"),)),
    Kind(name="gradient", title="Gradient norm", unit="", curves=(Curve(name="gradient norm", key="grad_norm"),)),
    Kind(
        name="throughput",
        title="Throughput",
        unit="real tokens a second",
        curves=(Curve(name="tokens a second", key="tokens_per_second", smoothing=True),),
    ),
    Kind(
        name="padding",
        title="Padding",
        unit="% of the slots",
        scale=100,
        needs_more_than_zero=True,
        curves=(Curve(name="padding", key="padding_share"),),
    ),
    Kind(
        name="expert-load",
        title="Load over the experts",
        unit="%",
        scale=100,
        curves=(
            Curve(name="entropy, of an even load's", key="expert_entropy"),
            Curve(name="experts without a token", key="unused_expert_share"),
        ),
    ),
    Kind(
        name="memory",
        title="GPU memory, peak reserved",
        unit="GiB",
        scale=GIB,
        needs_more_than_zero=True,
        curves=(Curve(name="reserved", key="memory_bytes"),),
    ),
    Kind(name="utilisation", title="GPU busy", unit="%", scale=100, curves=(sampled("GPU busy", "utilization"),)),
    Kind(
        name="gpu-memory",
        title="GPU memory, all processes",
        unit="GiB",
        scale=GIB,
        curves=(sampled("in use", "card_used_bytes"), sampled("there is", "card_total_bytes")),
    ),
    Kind(name="power", title="GPU power", unit="W", curves=(sampled("power", "power_watts"),)),
    Kind(
        name="temperature",
        title="GPU temperature",
        unit="°C",
        is_from_zero=False,
        curves=(sampled("temperature", "temperature_celsius"),),
    ),
    Kind(name="clock", title="GPU clock", unit="MHz", curves=(sampled("clock", "sm_mhz"),)),
    Kind(
        name="waiting",
        title="Waiting for data",
        unit="% of a step",
        scale=100,
        curves=(sampled("waiting", "data_share"),),
    ),
    Kind(
        name="cpu",
        title="CPUs busy",
        unit="%",
        scale=100,
        curves=(sampled("this run, of its CPUs", "cpu_share"), sampled("the machine", "machine_cpu_share")),
    ),
    Kind(
        name="rss",
        title="Memory of the run's processes",
        unit="GiB",
        scale=GIB,
        curves=(sampled("resident", "rss_bytes"),),
    ),
    Kind(
        name="reads",
        title="Read from disks",
        unit="MiB a second",
        scale=MIB,
        needs_more_than_zero=True,
        curves=(sampled("read", "read_bytes_per_second"),),
    ),
)

UNITS = {
    "_bytes_per_second": ("MiB a second", MIB),
    "_bytes": ("GiB", GIB),
    "_share": ("%", 100.0),
    "_percent": ("%", 1.0),
    "_watts": ("W", 1.0),
    "_celsius": ("°C", 1.0),
    "_mhz": ("MHz", 1.0),
    "_seconds": ("s", 1.0),
}
"""What a key of the monitor's ends with, and so what it is in."""
NO_CHART = {
    "time",
    "step",
    "workers",
    *(curve.key for kind in KINDS for curve in kind.curves if curve.source == "samples"),
}


def of_samples(samples: Iterable[Mapping[str, Any]]) -> tuple[Kind, ...]:
    """A chart for each other number that a monitor, perhaps a newer one, sampled; in the order of their first lines."""
    keys = dict.fromkeys(
        key
        for sample in samples
        for key, value in sample.items()
        if key not in NO_CHART and isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    return tuple(of_key(key) for key in keys)


def of_key(key: str) -> Kind:
    """The chart of one key: its words are the title, its ending the unit."""
    ending = next((ending for ending in UNITS if key.endswith(ending)), "")
    unit, scale = UNITS.get(ending, ("", 1.0))
    phrase = key.removesuffix(ending).replace("_", " ")
    return Kind(
        name="sampled-" + re.sub(r"[^A-Za-z0-9]+", "-", key),
        title=f"{phrase[:1].upper()}{phrase[1:]}",
        unit=unit,
        scale=scale,
        curves=(Curve(name=phrase, key=key, source="samples"),),
    )
