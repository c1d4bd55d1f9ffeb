"""`loradock data`: what a data set holds, in the tokens of the model that is to learn it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loradock.commands.data_compare import compare
from loradock.commands.data_rows import counted, prepared
from loradock.commands.data_show import show
from loradock.commands.page import console_on, page, say
from loradock.commands.paths import OutputFile
from loradock.commands.run_options import Ask, RunCommand, run_options
from loradock.commands.train import QUIET
from loradock.commands.verbs import verb_group
from loradock.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.status import Status

    from loradock.config.load import Loaded
    from loradock.config.schema import RunConfig
    from loradock.data.corpus import Corpus
    from loradock.data.pair_statistics import PairStatistics
    from loradock.data.samples.rows import RowSamples
    from loradock.data.statistics import Statistics
    from loradock.facts import ModelFacts


@verb_group(
    "data",
    {
        "tokenize tokenise preview view head print display sample samples inspect look render template": (
            "loradock data show, with the arguments of train"
        ),
        "prepare preprocess check validate verify lint info describe count lengths length analyze analyse summary": (
            "loradock data stats, with the arguments of train"
        ),
        "dedup dedupe deduplicate": "loradock train ... --set data.deduplicate=exact; loradock data stats counts them",
        "split": "loradock train ... --set data.validation=0.05 holds rows out",
        "mix merge concat": "loradock train --data A --data B",
        "convert format": "rows are read as they are: loradock data show says which format was found",
    },
)
def data() -> None:
    """Inspect a data set before training."""


def as_lengths(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
    """`256,512` as numbers of tokens."""
    if text is None:
        return None
    fields = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in fields):
        raise click.BadParameter("lengths are whole numbers of tokens: --lengths 256,512,1024")
    return sorted({int(word) for word in fields})


@data.command(cls=RunCommand)
@run_options(output="output of the run; this command writes nothing there.")
@click.option(
    "--lengths",
    metavar="N,...",
    callback=as_lengths,
    help="Values of data.max_length to compare. [default: 256,512,1024,2048 and the model's positions]",
)
@click.option("--png", type=OutputFile(".png"), metavar="FILE", help="Write a plot of the lengths.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on stdout.")
def stats(ask: Ask, *, lengths: list[int] | None, png: Path | None, as_json: bool) -> None:
    """Report lengths in tokens, what each data.max_length would cost, odd rows, and the length to use.

    \b
    loradock data stats run.yaml
    loradock data stats --data rows.jsonl
    loradock data stats --model DIR --data rows.jsonl --lengths 512,1024 --png lengths.png

    Rows are read, checked and tokenised as `train` does it, into the same cache; bad rows are all named, and end it
    with exit code 65. Of the model only config.json and the tokenizer are needed, no weights. Without --model it counts
    characters and words instead of tokens.
    """

    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    loaded = _loaded(ask)
    for warning in loaded.warnings:
        say(f"warning: {warning}", stderr=True)
    status = console_on(stderr=True).status("rows")
    if not loaded.config.model.name or loaded.config.objective_spec.embeds:
        refuse_without_model({"--lengths": lengths, "--png": png})
        texts_only(loaded.config, status, as_json=as_json)
        return
    from loradock.data import first_look
    from loradock.data.statistics import measure
    from loradock.model import kept_facts

    with redirect_stdout(sys.stderr), status:  # libraries print there; stdout is for our result alone
        objective = loaded.config.objective_spec
        first_look.look(loaded.config.data, objective=objective, seconds=first_look.GLANCE_SECONDS)
        _, model = kept_facts.inspect(loaded.config)
        looked_at = prepared(loaded.config, progress=counted(status, "prepared"))
        corpus, max_length = looked_at.corpus, looked_at.max_length
        samples, prepared_rows = corpus.rows, corpus.leading.train.prepared
        if samples is None:
            statistics = of_pairs(corpus, model, max_length, lengths, png=png)
        else:
            statistics = measure(
                samples, model=model, max_length=max_length, lengths=lengths, progress=counted(status, "read")
            )
            if png:
                draw(samples, statistics, png)
        notes = (*(note for source in prepared_rows.sources for note in source.notes), *prepared_rows.notes)
        for note in (*notes, *corpus.leading.selection_notes, *corpus.leading.idle_notes):
            say(note, stderr=True)
    if as_json:
        click.echo(json.dumps(asdict(statistics), indent=2, ensure_ascii=False))
        return
    with page() as screen:
        for part in parts_of(statistics):
            screen.print(part)


def parts_of(statistics: Statistics | PairStatistics) -> Iterator[RenderableType]:
    """What is printed of rows to answer, or of preference pairs."""
    from loradock.analysis.report.data_stats import parts
    from loradock.analysis.report.pair_stats import pair_parts
    from loradock.data.pair_statistics import PairStatistics

    yield from pair_parts(statistics) if isinstance(statistics, PairStatistics) else parts(statistics)


def of_pairs(
    corpus: Corpus, model: ModelFacts, max_length: int, lengths: list[int] | None, *, png: Path | None
) -> PairStatistics:
    """What preference pairs are made of. UsageError for a drawing, which is of rows to answer."""
    if png:
        what = "--png draws the lengths of rows to answer, and these are preference pairs"
        raise UsageError(what, hint="leave out --png")
    from loradock.data.pair_statistics import measure_pairs
    from loradock.data.samples.preferences import PreferenceSamples

    samples = corpus.leading
    assert isinstance(samples, PreferenceSamples)
    return measure_pairs(samples, model=model, max_length=max_length, lengths=lengths)


def _loaded(ask: Ask) -> Loaded:
    """The configuration, in which a model may be left out. ConfigError where rows are."""
    loaded = ask.load(needs_inputs=False)
    if loaded.config.model.name:
        return ask.load()
    if not loaded.config.data.sources:
        raise ConfigError("no data", hint="--data FILE of rows; with --model DIR its tokens are counted")
    return loaded


def refuse_without_model(options: Mapping[str, object]) -> None:
    """UsageError for an option that needs token lengths."""
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{option} needs the tokenizer of a model", hint=f"add --model DIR, or leave out {option}")


def texts_only(config: RunConfig, status: Status, *, as_json: bool) -> None:
    """Print what the data set's text shows, without a tokenizer."""
    from loradock.analysis.report.text_stats import text_parts
    from loradock.data import shards
    from loradock.data.read import chosen
    from loradock.data.text_statistics import measure_texts

    with redirect_stdout(sys.stderr), status:
        statistics = measure_texts(config.data.sources, skips=config.data.skips, progress=counted(status, "read"))
        if config.data.deduplicate != "off" or config.data.min_tokens:
            say("data.deduplicate and data.min_tokens go by tokens: with --model they are counted", stderr=True)
        if statistics.skipped_rows:
            say(f"{statistics.skipped_rows:,} bad rows are left out (data.on_bad_row skip)", stderr=True)
        for note in (line for source in config.data.sources for line in shards.told(source, chosen(source))):
            say(note, stderr=True)
    if as_json:
        click.echo(json.dumps(asdict(statistics), indent=2, ensure_ascii=False))
        return
    with page() as screen:
        for part in text_parts(statistics):
            screen.print(part)


def draw(samples: RowSamples, statistics: Statistics, file: Path) -> None:
    """Draw the histogram. Raises as `staged.file`."""
    from loradock.analysis.report import histogram
    from loradock.analysis.report.data_stats import marks
    from loradock.files import staged
    from loradock.text.amounts import percent

    supervised = percent(statistics.label_share)
    title = f"{statistics.train_rows:,} rows, {statistics.tokens.tokens:,} tokens, {supervised} of them supervised"
    with staged.file(file, replaces=True) as place:
        histogram.draw(samples.train.fitted.lengths, marks=marks(statistics), title=title, file=place)
    say(f"drawn: {file}", stderr=True)


data.add_command(show)
data.add_command(compare)
