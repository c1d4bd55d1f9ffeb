"""The table of charts: what each shows, of which lines of a run, in which unit. To add one: its line in KINDS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loradock.report.html.series import Look

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
    """A chart: values are multiplied by `scale` to be in `unit`. Those of the monitor lie over minutes, not steps."""

    name: str
    title: str
    unit: str
    curves: tuple[Curve, ...]
    scale: float = 1.0
    is_from_zero: bool = True


GIB, MIB = 2.0**-30, 2.0**-20
KINDS = (
    Kind(
        name="loss",
        title="Loss",
        unit="nats a token",
        is_from_zero=False,
        curves=(
            Curve(name="training", key="loss", smoothing=True),
            Curve(name="evaluation", key="loss", source="evaluations", look="dots"),
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
        curves=(Curve(name="padding", key="padding_share"),),
    ),
    Kind(
        name="memory",
        title="Memory of the card, peak reserved",
        unit="GiB",
        scale=GIB,
        curves=(Curve(name="reserved", key="memory_bytes"),),
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
PLACES = ("time", "step")


def of_samples(samples: Iterable[Mapping[str, Any]]) -> tuple[Kind, ...]:
    """A chart for each number that the monitor sampled, in the order in which they came up."""
    keys = dict.fromkeys(
        key
        for sample in samples
        for key, value in sample.items()
        if key not in PLACES and isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    return tuple(of_key(key) for key in keys)


def of_key(key: str) -> Kind:
    """The chart of one key: its words are the title, its ending the unit."""
    ending = next((each for each in UNITS if key.endswith(each)), "")
    unit, scale = UNITS.get(ending, ("", 1.0))
    words = key.removesuffix(ending).replace("_", " ")
    return Kind(
        name="sampled-" + re.sub(r"[^A-Za-z0-9]+", "-", key),
        title=f"{words[:1].upper()}{words[1:]}",
        unit=unit,
        scale=scale,
        curves=(Curve(name=words, key=key, source="samples"),),
    )
