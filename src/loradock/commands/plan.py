"""`loradock plan`: what a run would do and why, what could be improved, and what it takes. Nothing is trained."""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.page import page, say, write
from loradock.commands.run_options import Ask, Price, RunCommand, run_options
from loradock.config.load import Loaded
from loradock.errors import UsageError
from loradock.plan import gpu_table

if TYPE_CHECKING:
    from loradock.config.schema import RunConfig
    from loradock.config.sections.data import DataConfig
    from loradock.facts import DataFacts, Facts
    from loradock.model.source import BaseModel
    from loradock.plan.audit import Audit
    from loradock.plan.changed import AtLength

QUIET = {"TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
LEARNED_SHARE = 0.5
TIMES_MEAN = 4


class WithGpus(RunCommand):
    """A command whose help ends with the names of the GPUs."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Read them when they are asked for, only."""
        names = ", ".join(sorted(gpu.key for gpu in gpu_table.table()))
        with formatter.section("GPU"):
            formatter.write_text(names)


@click.command(cls=WithGpus)
@run_options(output="output of the run; this command writes nothing there.")
@click.option(
    "--gpu", metavar="NAME", help="Plan for this GPU model (a10, h200, ...; see below); it need not be installed."
)
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs per node; one process per GPU.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, metavar="N", help="Number of nodes.")
@click.option("--price-per-hour", type=Price(), metavar="X", help="Price of one GPU per hour, for the cost.")
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Plan without the data: number of rows.")
@click.option("--mean-tokens", type=click.IntRange(min=1), metavar="M", help="With --rows: mean tokens per row.")
@click.option(
    "--longest-tokens",
    type=click.IntRange(min=1),
    metavar="L",
    help="With --rows: tokens of the longest row. [default: 4 x M]",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on stdout.")
def plan(
    ask: Ask,
    *,
    gpu: str | None,
    gpus: int | None,
    nodes: int,
    price_per_hour: float | None,
    rows: int | None,
    mean_tokens: int | None,
    longest_tokens: int | None,
    as_json: bool,
) -> None:
    """Plan a run before it costs anything: every decision with its reason, and what would make it faster.

    \b
    loradock plan run.yaml --gpu a10 --price-per-hour 0.75
    loradock plan --preset mistral-a10 --model DIR --rows 170000 --mean-tokens 155 --gpu a10
    loradock plan --model DIR --rows 170000 --mean-tokens 155 --gpu h100 --gpus 8 --nodes 2

    Of the model only config.json and the tokenizer are needed, no weights. Gains are predictions: `loradock diagnose`
    measures them.
    """
    from loradock.data import first_look
    from loradock.plan.audit import audit

    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    made_up = _made_up(rows, mean_tokens, longest_tokens)
    if made_up and "--data" in ask.shortcuts:
        what = "--rows plans without the data, and --data names it"
        raise UsageError(what, hint="leave out --data, or --rows and --mean-tokens")
    loaded = _loaded(ask, needs_rows=made_up is None)
    facts = _machine(gpu, count=gpus, nodes=nodes)
    if not made_up:
        # before a library is imported
        objective = loaded.config.objective_spec
        first_look.look(loaded.config.data, objective=objective, seconds=first_look.GLANCE_SECONDS)
    base, model, length = _model(loaded.config)
    if made_up:
        data, at_length = described_facts(loaded.config, *made_up, length=length(made_up[2])), None
    else:
        data, at_length = _counted(loaded.config, base, length)
    audit_result = audit(loaded.config, facts, model, data, at_length=at_length, price_per_hour=price_per_hour)
    if as_json:
        from loradock.analysis.report.audit import as_dict

        click.echo(json.dumps(as_dict(audit_result, price_per_hour=price_per_hour), indent=2, default=str))
    else:
        _show(audit_result, loaded, price_per_hour=price_per_hour)


def described_facts(config: RunConfig, rows: int, mean: int, longest: int, *, length: int) -> DataFacts:
    """Facts of rows that are only described; where a row has several documents, each of these has `mean` tokens."""
    from loradock.data.samples.pairs import described

    if not config.objective_spec.embeds:
        documents = rows * config.objective_spec.documents_together
        return made_up_facts(documents, mean, longest, length=length, data=config.data)
    return described(config, rows, mean_tokens=mean, longest_tokens=longest, learned_share=LEARNED_SHARE)


def made_up_facts(rows: int, mean: int, longest: int, *, length: int, data: DataConfig) -> DataFacts:
    """Facts of rows that are only described, of at most `length` tokens each; half of the tokens count as learned.

    A validation file of its own is taken to hold no rows.
    """
    from loradock.facts import DataFacts
    from loradock.plan.row_cut import estimated

    share = data.validation if isinstance(data.validation, float | int) else 0.0
    held_out = min(rows - 1, round(share * rows if share < 1 else share))
    rows -= held_out
    tokens = rows * mean
    facts = DataFacts(
        train_rows=rows,
        validation_rows=held_out,
        tokens=tokens,
        supervised_tokens=int(tokens * LEARNED_SHARE),
        limit_tokens=longest,
        longest_tokens=longest,
        samples_per_epoch=rows,
    )
    return estimated(facts, length, long_rows=data.long_rows)


def _made_up(rows: int | None, mean: int | None, longest: int | None) -> tuple[int, int, int] | None:
    """The described rows, or None where none are; UsageError for half a description."""
    if rows is None and mean is None and longest is None:
        return None
    if rows is None or mean is None:
        raise UsageError("--rows and --mean-tokens must be given together", hint="--rows 10000 --mean-tokens 166")
    if longest is not None and longest < mean:
        raise UsageError(f"--longest-tokens {longest} is less than the mean of {mean}", hint=f"--longest-tokens {mean}")
    return rows, mean, longest or TIMES_MEAN * mean


def _loaded(ask: Ask, *, needs_rows: bool) -> Loaded:
    """The configuration; UsageError where rows are neither there nor described."""
    loaded = ask.load(needs_inputs=False)
    if not needs_rows:
        return loaded
    if not loaded.config.data.sources:
        raise UsageError("there are no rows to plan for", hint="--data FILE, or --rows 10000 --mean-tokens 166")
    return ask.load()


def _machine(gpu: str | None, *, count: int | None, nodes: int) -> Facts:
    """One of the machines, with the named GPU or as this one; with this many processes, where a number is given."""
    from loradock.machine import Host, probe
    from loradock.plan import planner

    if gpu:
        return planner.machine_with(gpu, count=count or 1, nodes=nodes)
    facts = probe.gather(Host())
    count = count or (max(1, len(facts.gpus)) if nodes > 1 else None)
    return replace(facts, world_size=count * nodes, local_world_size=count) if count else facts


def _model(config: RunConfig) -> tuple[BaseModel, Any, Callable[[int], int]]:
    """The base without its weights, its facts, and the longest allowed row in tokens by the longest there is."""
    from loradock.model import kept_facts, lengths

    if not config.model.name:
        raise UsageError("there is no model to plan for", hint="--model DIR with config.json and a tokenizer")
    base, facts = kept_facts.inspect(config)
    return base, facts, lambda rows: lengths.longest_row(config.data.max_length, facts, rows=rows)


def _counted(config: RunConfig, base: BaseModel, length: Callable[[int], int]) -> tuple[DataFacts, AtLength]:
    """The rows as train prepares them, and how to count them cut at another length."""
    from loradock.data.corpus import prepare_corpus
    from loradock.machine import Host, probe
    from loradock.model.tokenizer import open_tokenizer

    facts = probe.gather(Host())
    tokenizer = open_tokenizer(base, add_tokens=config.tokenizer.add_tokens)
    corpus = prepare_corpus(config, tokenizer=tokenizer, max_length=length, facts=facts)

    @functools.cache
    def at_length(tokens: int) -> DataFacts:
        return corpus.at_length(tokens).facts

    return corpus.facts, at_length


def _show(audit: Audit, loaded: Loaded, *, price_per_hour: float | None) -> None:
    """Everything on the screen."""
    from rich.padding import Padding
    from rich.text import Text

    from loradock.analysis.report import audit as report
    from loradock.analysis.report.console import memory_table, plan_lines, plan_table

    for warning in loaded.warnings:
        say(f"warning: {warning}", stderr=True)
    current = audit.baseline.plan
    with page() as screen:
        write(screen, plan_lines(current))
        for part in (plan_table(current), memory_table(current)):
            screen.print(part)
        lines = (report.memory_line(audit), report.finish_line(audit.finish), report.rates_line(audit))
        write(screen, filter(None, (*lines, report.traffic_line(audit))))
        title = "possible improvements" if audit.findings else "no change is expected to pay"
        screen.print(Text(title, style="bold"))
        for part in report.finding_parts(audit.findings):
            screen.print(part, crop=False)
        if audit.phases:
            screen.print(Text("phases", style="bold"))
            for line in report.phase_lines(audit):
                screen.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
        for title, lines in (
            ("already good", audit.good),
            ("considered and rejected", [f"{proposal.what}: {proposal.why}" for proposal in audit.left]),
        ):
            screen.print(Text(title, style="bold"))
            screen.print(report.bullets(lines))
        write(screen, report.total_lines(audit, price_per_hour=price_per_hour))
    say("gains are predictions; `loradock diagnose` with the same arguments measures them", stderr=True)
