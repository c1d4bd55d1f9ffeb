"""Groups of commands (`loradock data`, ...) that answer the verbs which others have for theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

HELP = {"help_option_names": ["-h", "--help"]}


def verb_group(name: str, others: Mapping[str, str]) -> Any:
    """A decorator: a group of that name; `others`: verbs that it has not, with spaces between them -> what to type."""
    answers = {verb: answer for verbs, answer in others.items() for verb in verbs.split()}

    class Answering(click.Group):
        """Says what an unknown verb is called here."""

        def resolve_command(
            self, ctx: click.Context, args: list[str]
        ) -> tuple[str | None, click.Command | None, list[str]]:
            """As click does, but for verbs of others, and slips."""
            verb = args[0]
            if not (verb.startswith("-") or verb in self.commands or ctx.resilient_parsing):
                from loradock.text.suggest import nearest

                plain = verb.lower().replace("_", "-")
                near = nearest(plain, self.commands)
                answer = answers.get(plain) or (f"loradock {name} {near}" if near else None)
                ctx.fail(f"No such command {verb!r}{f': {answer}' if answer else ''}")
            return super().resolve_command(ctx, args)

    return click.group(name, cls=Answering, context_settings=HELP)
