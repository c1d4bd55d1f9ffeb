"""The `loradock` command: a lazy table of verbs, so that `--help` imports none of them."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import NoReturn

import click

from loradock import __version__
from loradock.errors import EnvironmentUnfit, Interrupted, LoradockError
from loradock.files.system_errors import machine_error, refused_path
from loradock.process import environment, signals, streams, termination_log

COMMANDS = {
    "train": ("loradock.commands.train", "Fine-tune an adapter: the main job."),
    "launch": ("loradock.commands.launch", "Run a command on several GPUs or nodes."),
    "env-check": ("loradock.commands.env_check", "Check that this machine can train; name what to fix."),
    "net-check": ("loradock.commands.net_check", "Check the network between ranks before a run."),
    "diagnose": ("loradock.commands.diagnose", "Find a run's bottleneck: measure one change at a time."),
    "profile": ("loradock.commands.profile", "Profile a run: where its time goes, and what bounds it."),
    "plan": ("loradock.commands.plan", "Plan a run: decisions, possible gains, time and cost."),
    "reproduce": ("loradock.commands.reproduce", "Make a run again from its record, and prove that it is the same."),
    "runs": ("loradock.commands.runs", "List runs: state, steps, loss, where."),
    "checkpoint": ("loradock.commands.checkpoint", "List, verify or export the checkpoints of a run."),
    "generate": ("loradock.commands.generate", "Answer the rows of a file with what was trained."),
    "chat": ("loradock.commands.chat", "Talk with what was trained, in the terminal."),
    "merge": ("loradock.commands.merge", "Merge an adapter and its base into one model directory."),
    "export": ("loradock.commands.export", "Write a merged model as GGUF, for llama.cpp and Ollama."),
    "embed": ("loradock.commands.embed", "Embed the texts of a file with a trained adapter."),
    "evaluate": ("loradock.commands.evaluate", "Measure answers on tasks and rows, or embeddings."),
    "config": ("loradock.commands.config", "Show, validate or describe a run's configuration."),
    "report": ("loradock.commands.report", "Make an HTML page of a run, or compare several."),
    "data": ("loradock.commands.data", "Describe a data set: lengths, truncation, padding, odd rows."),
    "build": ("loradock.commands.build", "Build the image, on scratch storage."),
    "prune": ("loradock.commands.prune", "Free the space that loradock's images, caches and scratch take."),
    "bundle": ("loradock.commands.bundle", "Pack image, model and data into one file, for offline sites."),
    "lock": ("loradock.commands.lock", "Verify the installed packages against the lock file."),
    "render": ("loradock.commands.render", "Write a run as Kubernetes objects, or check a manifest."),
    "image": ("loradock.commands.image", "An image's bill of materials, content digest and signature."),
}


class LazyGroup(click.Group):
    """A click group that imports a command's module when that command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        return getattr(module, cmd_name.replace("-", "_"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; what an unknown verb is called here is said."""
        name = args[0]
        if not name.startswith("-") and name not in COMMANDS and not ctx.resilient_parsing:
            from loradock.commands.option_hints import verb_hint

            hint = verb_hint(name, COMMANDS)
            ctx.fail(f"No such command {name!r}{f': {hint}' if hint else ''}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """As click does; an option that is an argument here, or a file, is answered with that."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as unknown:
            if ": " in unknown.message:  # it is answered
                raise
            from loradock.commands.option_hints import of_a_model

            raise of_a_model(unknown) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="loradock")
def cli() -> None:
    """Take a base model and a data set, get a fine-tuned adapter back."""
    environment.require_numbers()
    if sys.flags.optimize > 1:
        what = "Python was started without docstrings (-OO, PYTHONOPTIMIZE=2), and transformers reads them"
        raise EnvironmentUnfit(what, hint="unset PYTHONOPTIMIZE")


def main() -> None:
    """Run the command line; an error ends it with its message on stderr and its exit code.

    A bug (an error that nobody foresaw, or one that is a LoradockError itself) shows its traceback and ends with 70.
    A disk that fails while a module is imported is no bug.
    """
    try:
        _main()
    except KeyboardInterrupt:  # the first signal came just when it was to be said how the command ends
        _end(Interrupted(f"stopped by {signals.requested() or 'a signal'}"))


def _main() -> NoReturn:
    try:
        signals.install()
        streams.install()
        code = _run()
        signals.settle()
        sys.exit(code)
    except (click.exceptions.Abort, KeyboardInterrupt):  # the second: before click runs
        _end(Interrupted(f"stopped by {signals.requested() or 'a signal'}"))
    except click.ClickException as usage:
        signals.settle()
        usage.show()
        termination_log.write(usage.exit_code, usage.format_message())
        sys.exit(usage.exit_code)
    except LoradockError as error:
        signals.settle()
        if error.exit_code == LoradockError.exit_code:
            traceback.print_exception(error)
        _end(error)
    except Exception as error:  # noqa: BLE001  the last resort: nothing is swallowed, the traceback is shown
        signals.settle()
        if failed := machine_error(error) or refused_path(error):
            _end(failed)
        traceback.print_exc()
        termination_log.write(LoradockError.exit_code, f"{type(error).__name__}: {error}")
        sys.exit(LoradockError.exit_code)


def _run() -> int:
    """Run the command; its exit code, or, where it went well, that of a result which stdout could not take."""
    try:
        code = cli(standalone_mode=False) or 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    lost = streams.lost_result()
    if lost and not code:
        raise lost
    if lost:
        click.echo(str(lost), err=True)
    return code


def _end(error: LoradockError) -> NoReturn:
    signals.settle()
    click.echo(str(error), err=True)
    termination_log.write(error.exit_code, error)
    # A KeyboardInterrupt that went through an exec of text (as imports make them) ends `python -m` with SIGINT whatever
    # came of it, until another such exec goes well.
    exec("")
    sys.exit(error.exit_code)
