"""`loradock chat`: talk with what was trained, in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.model_options import BASE_MODEL, MODEL, TEMPLATE, computing_options, opened_model, quiet
from loradock.commands.paths import LocalPath
from loradock.commands.sampling_options import sampling_options

if TYPE_CHECKING:
    from loradock.errors import LoradockError
    from loradock.use.inference.chat import Chat

HELP = "/reset forgets the turns, /system TEXT sets the system turn, /ids shows the last prompt's token ids, /exit ends"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@MODEL
@click.option("--system", default="", metavar="TEXT", help="A system turn before all others.")
@click.option("--tools", metavar="FILE", type=LocalPath(), help="Tools that may be called: a JSON list of definitions.")
@sampling_options(max_new_tokens=512)
@BASE_MODEL
@TEMPLATE
@computing_options
def chat(
    model: Path,
    *,
    system: str,
    tools: Path | None,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    **asked: Any,
) -> None:
    """Talk with MODEL: a run, an adapter, a merged model, or a base. Answers go to stdout, all else to stderr.

    \b
    loradock chat runs/a-001
    echo "Name a prime number." | loradock chat runs/a-001

    The turns are rendered with the template of training. A line that ends with \\ continues in the next: training rows
    often have several (an instruction, a blank line, an input). /reset, /system TEXT, /ids, /exit.

    With --tools, calls are shown on stderr as NAME(ARGUMENTS), and /result TEXT says what the first of them gave; when
    all have a result, MODEL answers.
    """
    quiet()
    from loradock.use.inference.chat import Chat, tools_in
    from loradock.use.inference.sampling import Sampling

    definitions = tools_in(tools) if tools else ()
    with opened_model(model, asked) as (opened, _):
        opened.prompts.check_template()
        sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
        talk = Chat(opened, system=system, tools=definitions, max_new_tokens=max_new_tokens, sampling=sampling)
        name = opened.prompts.template.name
        template = "the tokenizer's own" if name.startswith("the ") else f"the {name}"
    click.echo(f"{model}: rendered with {template} template. {HELP}", err=True)
    while (line := _line()) is not None:
        if line == "/exit":
            return
        if line:
            _answer(talk, line)


def _line() -> str | None:
    """What the user typed, a line that ends with a backslash joined to the next; None at the end of the input."""
    click.echo("> ", nl=False, err=True)
    lines: list[str] = []
    while line := sys.stdin.readline():
        lines.append(line.removesuffix("\n"))
        if not lines[-1].endswith("\\"):
            break
    return "\n".join(line.removesuffix("\\") for line in lines).strip() if lines else None


def _is_text(line: str) -> bool:
    """Whether every byte that was read belonged to a character; the others stand for themselves, as surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in line)


def _refuse(error: LoradockError) -> None:
    """Say why there is no answer; where nobody is there to ask again, that ends the command."""
    if not sys.stdin.isatty():
        raise error
    click.echo(str(error), err=True)


def _answer(talk: Chat, line: str) -> None:
    from loradock.data.formats.fields import RowError
    from loradock.errors import DataError, UsageError

    if not _is_text(line):
        hint = f"iconv -f LATIN1 -t UTF-8, or a terminal in {sys.stdin.encoding}"
        _refuse(DataError(f"what was typed is not text in {sys.stdin.encoding}: {line!r}", hint=hint))
        return
    command, _, argument = line.partition(" ")
    if command == "/reset":
        talk.reset()
    elif command == "/system":
        talk.reset(argument.strip())
    elif command == "/ids":
        click.echo(" ".join(map(str, talk.ids)))
    elif command.startswith("/") and command[1:].isalpha() and command != "/result":
        click.echo(f"unknown command: {command}. {HELP}", err=True)
    else:
        try:
            answer = talk.give_result(argument, show=_show) if command == "/result" else talk.say(line, show=_show)
        except (RowError, UsageError) as error:
            _refuse(error if isinstance(error, UsageError) else DataError(str(error)))
            return
        if answer:
            click.echo()
        if answer and answer.finish == "length":
            click.echo("(cut: --max-new-tokens, or the model's longest context)", err=True)
        for call in talk.open_calls:
            click.echo(f"call: {call.shown}   (/result TEXT says what it gave)", err=True)


def _show(piece: str) -> None:
    click.echo(piece, nl=False, color=True)
