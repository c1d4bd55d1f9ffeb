"""The Markdown table and the chart of a results file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.train.arms import ARMS
from bench.train.lines import DONE, FAILED
from bench.train.measures import REFERENCE, Measured, Span, best_peer, ceiling, groups, loss_difference, measured

HEAD = (
    "| arm | tokens/s | of the best peer | learned tokens/s | samples/s | step p50, p95 (s) | first step (s) "
    "| peak memory (GiB) | MFU | of the floor | loss | runs |"
)
RULE = "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"


def markdown(lines: list[dict[str, Any]], *, warmup_steps: int, peak_flops: float | None) -> str:
    """One table a model and row set. `peak_flops` is the card's published peak, where there is one."""
    machines = [line["machine"] for line in lines if line["kind"] == "slice"]
    if not machines:
        return "Nothing was measured yet.\n"
    top = ceiling(lines)
    commits = ", ".join(sorted({machine["commit"] for machine in machines}))
    about = f"Steps from {warmup_steps + 1} on; median (slowest .. fastest repeat)."
    limits = "MFU counts LoRA's two passes against the card's published peak, the floor is the time at the ceiling."
    losses = f"Loss: the largest difference from `{REFERENCE}` at a step."
    text = [
        f"{machines[-1]['device']}; commits {commits}. {about}",
        f"Ceiling of products: {top / 1e12:.4g} TFLOP/s measured." if top else "The ceiling was not measured.",
        f"{limits} {losses}",
        "",
    ]
    for (model, rows, shape), arms in groups(lines).items():
        text += [f"## {model}, {rows}", "", f"{shape}.", "", HEAD, RULE]
        text += table(arms, warmup_steps=warmup_steps, ceiling_flops=top, peak_flops=peak_flops)
        text.append("")
    text += ["## Arms", "", *(f"- `{name}`: {ARMS[name].about}" for name in seen(lines) if name in ARMS), ""]
    text += ["## Packages", "", *stacks(lines), ""]
    return "\n".join(text)


def table(
    arms: dict[str, list[dict[str, Any]]], *, warmup_steps: int, ceiling_flops: float | None, peak_flops: float | None
) -> list[str]:
    """A row an arm."""
    found = {arm: [measured(line, warmup_steps=warmup_steps) for line in lines] for arm, lines in arms.items()}
    good = {arm: [each for each in figures if each] for arm, figures in found.items()}
    speeds = {arm: span for arm, each in good.items() if (span := Span.of(one.tokens_per_second for one in each))}
    best = best_peer(speeds)
    rows: list[str] = []
    for arm, lines in arms.items():
        if arm not in speeds:
            why = next((line["reason"] for line in lines if line["status"] == FAILED), "no step after the warm-up")
            rows.append(f"| {arm} | {why.replace('|', '/')[:200]} |" + " |" * 10)
            continue
        difference = Span.of(loss_difference(line, arms[REFERENCE][0]) for line in lines) if REFERENCE in arms else None
        ratio = f"{speeds[arm].middle / best:.2f}x" if best else ""
        count = f"{sum(line['status'] == DONE for line in lines)} of {len(lines)} whole"
        cells = [arm, spread(speeds[arm]), ratio, *cells_of(good[arm], ceiling_flops, peak_flops)]
        rows.append("| " + " | ".join([*cells, f"{difference.high:.4f}" if difference else "", count]) + " |")
    return rows


def cells_of(figures: list[Measured], ceiling_flops: float | None, peak_flops: float | None) -> list[str]:
    """The cells between the speed and the loss: medians over the repeats."""

    def middle(name: str) -> float:
        span = Span.of(getattr(each, name) for each in figures)
        return span.middle if span else 0.0

    flops = middle("flops")
    return [
        f"{middle('supervised_per_second'):,.0f}",
        f"{middle('samples_per_second'):.1f}",
        f"{middle('median_step'):.2f}, {middle('slow_step'):.2f}",
        f"{middle('first_step_seconds'):.1f}",
        f"{middle('peak_bytes') / 2**30:.2f}",
        f"{flops / peak_flops:.1%}" if peak_flops else "",
        f"{flops / ceiling_flops:.1%}" if ceiling_flops else "",
    ]


def spread(span: Span) -> str:
    """Median, and the span where there are several repeats."""
    return f"{span.middle:,.0f}" + (f" ({span.low:,.0f} .. {span.high:,.0f})" if span.low < span.high else "")


def seen(lines: list[dict[str, Any]]) -> list[str]:
    """The arms that were run, in the order of the table of arms."""
    names = {line["arm"] for line in lines if line["kind"] == "slice"}
    return [name for name in ARMS if name in names]


def stacks(lines: list[dict[str, Any]]) -> list[str]:
    """The packages of each kind of arm, as its own process saw them."""
    found: dict[str, str] = {}
    for line in lines:
        if line["kind"] == "slice" and line["arm"] in ARMS and line["summary"].get("stack"):
            names = ", ".join(f"{name} {each}" for name, each in line["summary"]["stack"].items())
            found[ARMS[line["arm"]].kind] = names
    return [f"- {kind}: {names}" for kind, names in found.items()]


def chart(lines: list[dict[str, Any]], path: Path, *, warmup_steps: int) -> None:
    """Tokens a second of every arm, a panel a model and row set; the bars' lines reach from min to max."""
    from matplotlib.figure import Figure

    panels = list(groups(lines).items())
    if not panels:
        return
    figure = Figure(figsize=(8, 0.8 + sum(0.6 + 0.32 * len(arms) for _, arms in panels)), layout="constrained")
    heights = [2 + len(arms) for _, arms in panels]
    axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axis, ((model, rows, _), arms) in zip(axes, panels, strict=True):
        figures = {arm: [measured(line, warmup_steps=warmup_steps) for line in each] for arm, each in arms.items()}
        spans = {arm: Span.of(one.tokens_per_second for one in each if one) for arm, each in figures.items()}
        known = {arm: span for arm, span in spans.items() if span}
        middles = [span.middle for span in known.values()]
        errors = [
            [span.middle - span.low for span in known.values()],
            [span.high - span.middle for span in known.values()],
        ]
        colours = ["tab:orange" if arm.startswith("ours") else "tab:gray" for arm in known]
        axis.barh(list(known), middles, xerr=errors if known else None, color=colours, capsize=3)
        axis.invert_yaxis()
        axis.set_title(f"{model}, {rows}", fontsize=10, loc="left")
        axis.set_xlabel("trained tokens a second, without padding")
    figure.savefig(path, dpi=120)
