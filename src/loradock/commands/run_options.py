"""The options that describe a run: CONFIG, --preset, --set and the short forms, the same for each verb."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from loradock.commands.bare_settings import SETTING, answer
from loradock.commands.foreign_options import answered
from loradock.commands.option_hints import explained
from loradock.commands.page import say
from loradock.commands.paths import LocalPath
from loradock.config.load import SHORTCUTS, Loaded, load
from loradock.config.rules import HubId, KeyProblem, hub_ids
from loradock.config.schema import RunConfig
from loradock.errors import InputMissing, LoradockError, NoCheckpoint, Problem, StorageError, UsageError
from loradock.files.system_errors import machine_error

STANDARD_INPUT = "-"
PATH_TEXT = LocalPath(path_type=str)
SHORT = tuple(flag.removeprefix("--").replace("-", "_") for flag in SHORTCUTS)
READ = ("config", "preset", "overrides", "grad_accum", *SHORT)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What was asked for on the command line; `load()` merges and checks it. `text`: CONFIG's, if it is known."""

    config: Path | None = None
    text: str | None = None
    preset: str | None = None
    overrides: tuple[str, ...] = ()
    shortcuts: dict[str, object] = field(default_factory=dict[str, object])

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Ask:
        """From what click read for OPTIONS and --output."""
        shortcuts: dict[str, object] = {f"--{name.replace('_', '-')}": values[name] for name in SHORT}
        shortcuts["--data"] = list(values["data"]) or None
        options = {flag: value for flag, value in shortcuts.items() if value is not None}
        return cls(config=values["config"], preset=values["preset"], overrides=values["overrides"], shortcuts=options)

    def load(self, *, needs_inputs: bool = True, reads_rows: bool = True) -> Loaded:
        """Merge and check. Raises ConfigError with every problem, or InputMissing where CONFIG cannot be read.

        `--data -` becomes the file that standard input is kept in; what that ends with, it ends with too. UsageError
        for a command that `reads_rows` of none.
        """
        paths = self.shortcuts.get("--data")
        is_piped = isinstance(paths, list) and STANDARD_INPUT in paths
        if is_piped and not reads_rows:
            raise UsageError("--data - is standard input, and this command reads no rows", hint="--data FILE")
        loaded = self._loaded(needs_inputs=needs_inputs)
        if isinstance(paths, list) and is_piped:
            input_copy = str(_standard_input(loaded.config))
            self.shortcuts["--data"] = [input_copy if path == STANDARD_INPUT else path for path in paths]
            loaded = self._loaded(needs_inputs=needs_inputs)
        return loaded

    def _loaded(self, *, needs_inputs: bool) -> Loaded:
        return load(
            self.config,
            text=self.text,
            preset=self.preset,
            overrides=self.overrides,
            shortcuts=self.shortcuts,
            needs_inputs=needs_inputs,
            pin=commit_of,
            adapter_keys=adapter_keys,
        )


def adapter_keys(given: str) -> Mapping[str, object]:
    """The keys that an adapter to begin with decides; none of a path that is not there, which a run refuses."""
    from loradock.training import continued

    return continued.keys_of(given) if Path(given).exists() else {}


def commit_of(hub_id: HubId, config: RunConfig) -> str | KeyProblem:
    """The commit that the run in `output` has recorded for the same hub id, else the latest; see `hub_commit.resolve`.

    So the same command again, as a restarted pod gives it, continues its run after the hub has moved on.
    """
    from loradock.model import hub_commit
    from loradock.training.run_dir import resume as resuming
    from loradock.training.run_dir.paths import holds_run

    if config.output and holds_run(directory := Path(config.output)):
        with suppress(StorageError, NoCheckpoint):  # told where the run is continued; a new one needs no record
            for recorded in hub_ids(resuming.recorded(directory).config):
                if recorded.commit and (recorded.kind, recorded.name) == (hub_id.kind, hub_id.name):
                    return recorded.commit
    return hub_commit.resolve(hub_id)


def _standard_input(config: RunConfig) -> Path:
    """The file below the cache that standard input was written to."""
    from loradock.config.places import cache_directory
    from loradock.data.standard_input import spooled

    if sys.stdin.isatty():
        say("reading rows from standard input; Ctrl-D ends them", stderr=True)
    return spooled(sys.stdin.buffer, cache_directory(config.data.cache) / "stdin")


def look_for_inputs(config: RunConfig) -> None:
    """See whether the model, data and template that were named are there, before anything is spent on them.

    Raises what reading them would (InputMissing, DataError, ConfigError), one error with all of them. No hub is asked,
    and no large library imported: one that is broken is for the environment check to find.
    """
    raise_together(failures(looks(config)))


def raise_together(errors: Sequence[LoradockError]) -> None:
    """Raise what inputs failed with: one error with all of them."""
    if len(errors) > 1:
        problems = [Problem(what=error.what, hint=error.hint) for error in errors]
        raise type(errors[0])(f"{len(errors)} input files cannot be read", hint="fix each of them", problems=problems)
    if errors:
        raise errors[0]


def failures(each_look: Iterable[Callable[[], object]]) -> list[LoradockError]:
    """What each look that failed raised."""
    errors: list[LoradockError] = []
    for look in each_look:
        try:
            look()
        except OSError as error:
            missing = InputMissing(f"{error.filename} cannot be read: {error.strerror}", hint="ls -ld its path")
            errors.append(machine_error(error) or missing)
        except LoradockError as error:
            errors.append(error)
    return errors


def looks(config: RunConfig) -> Iterator[Callable[[], object]]:
    """A look for each input that was named."""
    from loradock.config.places import is_remote
    from loradock.data.pairs import template
    from loradock.data.read import files
    from loradock.data.sources import check_fields, held_out_files
    from loradock.data.templates import Brought, resolve
    from loradock.model.hub_cache import is_hub_id
    from loradock.model.source import local_directory
    from loradock.plan import zero_config
    from loradock.training import continued
    from loradock.training.observers import trackers

    model, data = config.model, config.data
    if not is_hub_id(model.name):
        yield functools.partial(local_directory, Path(model.name))
    local_sources = [*filter(lambda source: not is_remote(source.path), (*data.sources, *held_out_files(data)))]
    for source in local_sources:
        yield functools.partial(files, source)
    yield functools.partial(check_fields, data.sources)
    yield functools.partial(resolve, data.template, own=Brought())
    if config.objective_spec.embeds:
        yield functools.partial(template.source, config.embedding.template)
    if config.lora.adapter:
        yield functools.partial(continued.directory_of, config.lora.adapter)
    if config.train.deepspeed:
        yield functools.partial(zero_config.read, Path(config.train.deepspeed))
    yield functools.partial(trackers.check, config.logging.trackers)


def _refused(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    """Gradient accumulation is no setting of its own: with one, another number of GPUs would be another training."""
    if value is not None:
        what = "gradient accumulation is not a setting: it follows from --batch-size, the samples of an optimiser step"
        raise UsageError(what, hint=f"--batch-size N, where N is {value} times the micro-batch times the GPUs")


def _pattern(beyond: Sequence[str]) -> str:
    """What to type where rows were named without --data, as by a pattern that the shell expanded."""
    suffixes = {Path(argument).suffix for argument in beyond if argument.endswith((*ROWS, ".json"))}
    if not suffixes:
        return "at most one CONFIG; all else are options"
    return f"--data before each file of rows; a pattern of rows goes in quotes, --data '*{min(suffixes)}'"


class Price(click.FloatRange):
    """A price an hour: a finite number of at least 0."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """UsageError for nan and what is beyond a float: no cost can be told by them."""
        price = super().convert(value, param, ctx)
        if not math.isfinite(price):
            raise UsageError(
                f"--price-per-hour must be a finite number of at least 0, not {value}", hint="--price-per-hour 0.75"
            )
        return price


ROWS = (".jsonl", ".csv", ".tsv", ".txt", ".parquet", ".arrow", ".gz", ".zst")
"""How files of rows end, which no CONFIG is."""
GRAD_ACCUM = ("--grad-accum", "--gradient-accumulation-steps", "--gradient_accumulation_steps")
OUTPUT = "output: the run directory."
OPTIONS = (
    click.argument("config", required=False, type=LocalPath()),
    click.option("--preset", metavar="NAME", help="A shipped configuration; `loradock config presets` lists them."),
    click.option("overrides", "--set", metavar="KEY=VALUE", multiple=True, help="Set any key: --set lora.rank=8."),
    click.option("--model", type=PATH_TEXT, metavar="DIR|ID", help="model.name: a local directory or a hub id."),
    click.option(
        "--data", type=PATH_TEXT, metavar="FILE", multiple=True, help="data.sources: may be repeated; - is stdin."
    ),
    click.option("--epochs", type=float, metavar="N", help="train.epochs: passes over the rows."),
    click.option("--max-steps", type=int, metavar="N", help="train.max_steps: optimiser steps."),
    click.option("--batch-size", type=int, metavar="N", help="train.global_batch: samples per optimiser step."),
    click.option(*GRAD_ACCUM, "grad_accum", callback=_refused, is_eager=True, hidden=True),
    click.option("--lr", type=float, metavar="RATE", help="train.learning_rate: the peak."),
    click.option("--rank", type=int, metavar="R", help="lora.rank: of the adapter."),
    click.option("--alpha", type=float, metavar="A", help="lora.alpha: its scale is alpha / rank."),
    click.option("--max-length", type=int, metavar="TOKENS", help="data.max_length: the longest sample."),
    click.option("--seed", type=int, metavar="N", help="train.seed: of the adapter, the order of rows and dropout."),
    click.option("--eval-steps", type=int, metavar="N", help="evaluation.every: steps between evaluations."),
    click.option("--save-steps", type=int, metavar="N", help="checkpoints.every: steps between checkpoints."),
)


class RunCommand(click.Command):
    """A command with `run_options`: what they hold comes to its function as one argument, `ask: Ask`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; what an option of another trainer is called here is said, and what a shell made of a pattern.

        Unquoted, `--data *.jsonl` is `--data a.jsonl b.jsonl c.jsonl`: b.jsonl is CONFIG, and c.jsonl one too many.
        """
        given = list(args)
        try:
            ctx.allow_extra_args = True
            super().parse_args(ctx, args)
        except click.NoSuchOption as unknown:
            raise answered(given, self, ctx) or explained(unknown, self) from None
        config = ctx.params.get("config")
        arguments = [*([str(config)] if config else []), *ctx.args]
        settings = [text for text in arguments if SETTING.match(text) and not Path(text).exists()]
        if settings:
            ctx.fail(answer(settings, self))
        rows = [config] if config and config.name.endswith(ROWS) else []
        if beyond := [*map(str, rows), *ctx.args]:
            examples = " ".join(beyond[:3]) + " ..." * (len(beyond) > 3)
            ctx.fail(f"Got unexpected extra arguments ({examples}): {_pattern(beyond)}")
        return ctx.args

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        """The parsed arguments; here, so that no frame lies between click and the command."""
        context = super().make_context(*given, **more)
        if not context.resilient_parsing:
            parameters = {name: value for name, value in context.params.items() if name not in READ}
            context.params = {**parameters, "ask": Ask.of(context.params)}
        return context


def run_options(command: Callable[..., Any] | None = None, *, output: str = OUTPUT) -> Callable[..., Any]:
    """Give a `RunCommand` the options that describe a run.

    `output` is the help of --output where it means something else to the command: `@run_options(output="...")`.
    """
    if command is None:
        return functools.partial(run_options, output=output)
    for option in (click.option("--output", type=PATH_TEXT, metavar="DIR", help=output), *reversed(OPTIONS)):
        command = option(command)
    return command
