"""`loradock net-check`: prove that the ranks of a run reach one another and are alike, and name those that do not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from loradock.commands.page import coloured, say
from loradock.distributed import schedulers
from loradock.errors import EnvironmentUnfit, UsageError
from loradock.text.amounts import counted

if TYPE_CHECKING:
    from loradock.env_check.cluster.base import Looked, Report, Row

COLORS = {"ok": "green", "warning": "yellow", "error": "red"}
MARKS = {"ok": "ok", "warning": "WARNING", "error": "ERROR"}
SHOWN_ROWS = 24
WIDTH = 12


@click.command("net-check")
@click.option("--nproc", type=click.IntRange(2, 64), help="Number of ranks to start on this node, without a launcher.")
@click.option(
    "--only", metavar="NAME,...", default="", help="Only these stages: interface, clock, link, all-reduce, node."
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds each stage waits for a rank.",
)
@click.option(
    "--limit-percent",
    type=click.FloatRange(0.1, 90),
    default=5.0,
    show_default=True,
    help="Report a rank this much slower than the others, beyond the noise.",
)
@click.option("--rounds", type=click.IntRange(3, 99), default=5, show_default=True, help="Benchmark rounds.")
@click.option("--strict", "is_strict", is_flag=True, help="Exit with 71 on warnings too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on stdout (rank 0).")
def net_check(
    *,
    nproc: int | None,
    only: str,
    timeout_seconds: float,
    limit_percent: float,
    rounds: int,
    is_strict: bool,
    as_json: bool,
) -> None:
    """Check that the ranks of a run reach each other, agree, and are equally fast.

    \b
    torchrun --nnodes 2 --nproc-per-node 8 ... -m loradock net-check
    loradock net-check --nproc 2
    loradock net-check --only link,all-reduce

    Start it as you start `loradock train`. Every rank exits with 0, or 71 on an error; rank 0 prints.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if nproc:
        sys.exit(_local(nproc))
    os.environ.update(schedulers.rank_of_step(os.environ))
    from loradock.env_check.cluster.net_check import as_dict, chosen, follow, lead
    from loradock.env_check.cluster.rendezvous import launched
    from loradock.env_check.examination import gathered
    from loradock.machine import Host

    stages = chosen([name.strip() for name in only.split(",")] if only else [])
    host = Host()
    facts = gathered(host)
    where = launched(host, facts)
    if where.rank:
        ending = follow(where, stages, host=host, facts=facts, timeout_seconds=timeout_seconds)
        if ending.exit_code and not facts.local_rank:
            raise EnvironmentUnfit(f"net-check ended this rank, {where.rank}: {'; '.join(ending.what)}")
        sys.exit(ending.exit_code)
    report, code = lead(
        where,
        stages,
        host=host,
        facts=facts,
        timeout_seconds=timeout_seconds,
        limit_percent=limit_percent,
        rounds=rounds,
        is_strict=is_strict,
        progress=_quiet if as_json else show,
    )
    if as_json:
        click.echo(json.dumps(as_dict(report, code), indent=2))
    else:
        say(verdict(report, code))
    sys.exit(code)


def _local(count: int) -> int:
    """The ranks are given the same options."""
    from loradock.env_check.cluster.local import launch

    if os.environ.get("RANK"):
        raise UsageError(
            "--nproc starts ranks, and a launcher started this one", hint="leave --nproc out, or unset RANK"
        )
    arguments = sys.argv[sys.argv.index("net-check") + 1 :]
    arguments_kept = [
        argument
        for place, argument in enumerate(arguments)
        if not argument.startswith("--nproc") and not (place and arguments[place - 1] == "--nproc")
    ]
    return launch(count, arguments_kept)


def _quiet(looked: Looked) -> None:
    """With --json nothing is shown before the end."""


def show(looked: Looked) -> None:
    """Print what a stage found, as soon as it ends."""
    for finding in looked.outcome.findings:
        line = f"{MARKS[finding.severity]:8}{looked.stage:{WIDTH}}{finding.what}"
        coloured(line, COLORS[finding.severity], indent=8 + WIDTH)
        if finding.remedy:
            click.echo(f"{'':{8 + WIDTH}}-> {finding.remedy}")
    for line in table(looked.outcome.rows):
        click.echo(f"{'':8}{line}")


def table(rows: Sequence[Row]) -> list[str]:
    """Rows in columns, the first ones of many."""
    if not rows:
        return []
    keys = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    table_rows = [keys, *([_text(row[key]) for key in keys] for row in rows[:SHOWN_ROWS])]
    widths = [max(len(line[place]) for line in table_rows) for place in range(len(keys))]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in table_rows
    ]
    return [*lines, *([f"... {len(rows) - SHOWN_ROWS} more: --json"] if len(rows) > SHOWN_ROWS else [])]


def _text(value: str | float | None) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def verdict(report: Report, exit_code: int) -> str:
    """How it ended, in a sentence."""
    counts = ", ".join(counted(len(report.named(kind)), kind) for kind in ("error", "warning"))
    seconds = sum(look.seconds for look in report.looked)
    omission = f"; left out: {', '.join(report.left_out)}" if report.left_out else ""
    ending = "a run on these ranks would fail" if exit_code else "these ranks can train together"
    return f"{report.world_size} ranks, {counts}, {seconds:.1f} s: {ending}{omission}"
