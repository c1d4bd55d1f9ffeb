"""The training curve as a PNG: training and evaluation loss over steps, the learning rate beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the metric lines of a run (`step`, `loss`, `learning_rate`) into `file`; loss in nats."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120)
    figure.subplots_adjust(left=0.1, right=0.91, bottom=0.12, top=0.93)
    FigureCanvasAgg(figure)
    loss = figure.add_subplot()
    loss.plot([line["step"] for line in steps], [line["loss"] for line in steps], color="#1f6f8b", label="training")
    if evaluations:
        xs, ys = [line["step"] for line in evaluations], [line["loss"] for line in evaluations]
        loss.plot(xs, ys, color="#c0392b", marker="o", markersize=3, label="evaluation")
    loss.set_xlabel("optimiser step")
    loss.set_ylabel("loss (nats)")
    loss.grid(alpha=0.25)
    rate = loss.twinx()
    rates = [line.get("learning_rate", math.nan) for line in steps]  # lines of another version may have none
    rate.plot([line["step"] for line in steps], rates, color="#999999", linewidth=0.8)
    rate.set_ylabel("learning rate", color="#777777")
    rate.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    loss.legend(loc="upper right")
    for axes in (loss, rate):
        axes.locator_params(axis="y", nbins=5)
    figure.savefig(file, pil_kwargs={"compress_level": 1})
