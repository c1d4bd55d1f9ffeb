"""An audit for people and for programs: findings as tables and lines that the command prints, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding as Indent
from rich.table import Table
from rich.text import Text

from loradock.plan import gpu_table
from loradock.plan.audit import Audit, Finish, Gain, Opportunity, Total
from loradock.plan.gpu_table import UNKNOWN_GPU
from loradock.plan.memory import sharded
from loradock.plan.trial import SHORT_RUN
from loradock.text.amounts import duration_text, size_text

COLORS = {"critical": "bold red", "moderate": "yellow", "low": "green"}
INDENT = 4


def finding_parts(findings: Sequence[Opportunity]) -> Iterator[RenderableType]:
    """What is left on the table, the best first: a line of figures, the change, and what to type.

    That line is as long as it is: to be printed with `crop=False`, so that it can be copied.
    """
    for number, finding in enumerate(findings, 1):
        trial = finding.trial
        unmeasured = "" if trial.accuracy_risk == "none" else " (not measured: diagnose --evaluate)"
        risks = f"risk to accuracy {trial.accuracy_risk}{unmeasured}, to stability {trial.stability_risk}"
        word = Text(f"{finding.severity:<9}", style=COLORS[finding.severity])
        yield Text.assemble(f"{number:>2}  ", word, f" {factor(finding.gain)}  ", (risks, "dim"))
        for line in change_lines(finding):
            yield Indent(Text(line), (0, 0, 0, INDENT), expand=False)
        yield Text(f"{' ' * INDENT}{set_line(trial.settings)}", no_wrap=True, overflow="ignore")


def change_lines(finding: Opportunity) -> list[str]:
    """The change, what is at fault, where the figure is from, and what it costs."""
    trial = finding.trial
    tried = ", then a short run" if finding.risk and trial.minutes < SHORT_RUN else ""
    effort = f"{work(finding.minutes)} of work ({trial.effort}{tried}), {finding.debugging} to debug"
    lines = [
        f"{trial.title}: {trial.cause}",
        f"{effort}; memory {size_text(finding.memory_bytes)}; source: {finding.gain.source}",
    ]
    return [*lines, f"price: {trial.price}"] if trial.price else lines


def phase_lines(audit: Audit) -> list[str]:
    """What is changed together and when: what is safe first, what has to be tried or built later."""
    lines: list[str] = []
    for number, phase in enumerate(audit.phases, 1):
        names = ", ".join(finding.trial.name for finding in phase.findings)
        lines.append(f"{number}. {phase.when}, {work(phase.minutes)} of work: {names}")
    return lines


def work(minutes: int) -> str:
    """Minutes, or hours, of a person."""
    return f"{minutes} min" if minutes < 60 else f"{minutes / 60:g} h"


def bullets(lines: Sequence[str]) -> RenderableType:
    """A list with a dash a line."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        table.add_row("  -", Text(line))
    return table


def memory_line(audit: Audit) -> str:
    """What is needed of what there is."""
    need, have = audit.baseline.plan.memory_bytes["total"], audit.available_bytes
    return f"memory: {size_text(need)} of the {size_text(have)} available to the run ({need / have:.0%})"


def finish_line(finish: Finish) -> str:
    """Tokens, steps, hours and cost."""
    cost = "" if finish.cost is None else f", {finish.cost:,.2f} at the given price"
    return (
        f"to finish: {finish.tokens:,} tokens in {finish.steps:,} steps, about {duration_text(finish.seconds)} "
        f"({finish.tokens_per_second:,.0f} tokens/s){cost}"
    )


def rates_line(audit: Audit) -> str:
    """What the speeds go by."""
    facts, plan = audit.baseline.facts, audit.baseline.plan
    if plan.device.value == "cpu":
        return "speeds: from rates measured on two shared CPU cores; only their ratios are meaningful"
    gpu = gpu_table.known_as(facts.gpu.name)
    if gpu is None:
        return (
            f"speeds: {facts.gpu.name} is not in the GPU table, so its times are not known; "
            f"only their ratios are meaningful, those of {UNKNOWN_GPU}"
        )
    return f"speeds: predicted from the published figures of {gpu.name}, {gpu.sustained:.0%} of peak TFLOP/s sustained"


def traffic_line(audit: Audit) -> str | None:
    """What the processes send one another, which the speeds leave out."""
    baseline = audit.baseline
    count = baseline.facts.world_size
    if count == 1:
        return None
    setting = baseline.sharded_setting(True, optimizer=baseline.plan.optimizer.value)
    a_pass, a_step = sharded.sent_bytes(baseline.model, setting, baseline.sharing)
    sent = f"{size_text(a_pass)} of weights a pass and " if a_pass else ""
    return (
        f"not included: communication between {count} ranks, {sent}{size_text(a_step)} of gradients per step "
        "and rank (loradock launch net-check measures the links)"
    )


def total_lines(audit: Audit, *, price_per_hour: float | None) -> list[str]:
    """Both totals, each planned again with all its changes at once."""
    lines: list[str] = []
    totals = {"conservative": audit.conservative, "aggressive": audit.aggressive}
    meaning = {"conservative": "no risk to accuracy or stability", "aggressive": "with risks and claimed gains"}
    for name, total in totals.items():
        if not total.trials:
            lines.append(f"{name} ({meaning[name]}): no change of this kind to recommend")
            continue
        finish = audit.finish_with(total, price_per_hour=price_per_hour)
        lines += [
            f"{name} ({meaning[name]}): {factor(total.gain)}, {duration_text(finish.seconds)}"
            + ("" if finish.cost is None else f", {finish.cost:,.2f}"),
            f"  {set_line(total.settings)}",
        ]
    return lines


def set_line(settings: tuple[str, ...]) -> str:
    """The options that apply them."""
    return " ".join(f"--set {quoted(setting)}" for setting in settings)


def quoted(setting: str) -> str:
    """A setting as a shell takes it: lists have brackets and spaces."""
    return f"'{setting}'" if set(setting) & set(" []{}*?$&;|<>()\"'") else setting


def factor(gain: Gain) -> str:
    """1.88x, or a range."""
    return f"{gain.low:.2f} to {gain.high:.2f}x" if gain.is_range else f"{gain.low:.2f}x"


def as_dict(audit: Audit, *, price_per_hour: float | None) -> dict[str, Any]:
    """The JSON form."""
    return {
        "format": "loradock.plan.plan/1",
        "plan": audit.baseline.plan.as_dict(),
        "available_bytes": audit.available_bytes,
        "speeds": rates_line(audit),
        "finish": {**asdict(audit.finish), "tokens_per_second": audit.finish.tokens_per_second},
        "findings": [_finding(finding) for finding in audit.findings],
        "phases": [
            {"when": phase.when, "minutes": phase.minutes, "trials": [finding.trial.name for finding in phase.findings]}
            for phase in audit.phases
        ],
        "conservative": _total(audit, audit.conservative, price_per_hour=price_per_hour),
        "aggressive": _total(audit, audit.aggressive, price_per_hour=price_per_hour),
        "good": list(audit.good),
        "left": [asdict(proposal) for proposal in audit.left],
    }


def _finding(finding: Opportunity) -> dict[str, Any]:
    return {
        **asdict(finding.trial),
        "minutes": finding.minutes,
        "debugging": finding.debugging,
        "severity": finding.severity,
        "gain": _gain(finding.gain),
        "memory_bytes": finding.memory_bytes,
    }


def _total(audit: Audit, total: Total, *, price_per_hour: float | None) -> dict[str, Any]:
    return {
        "trials": [trial.name for trial in total.trials],
        "settings": list(total.settings),
        "gain": _gain(total.gain),
        "finish": asdict(audit.finish_with(total, price_per_hour=price_per_hour)),
    }


def _gain(gain: Gain) -> dict[str, Any]:
    return {**asdict(gain), "expected": gain.expected}
