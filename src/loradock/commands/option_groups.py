"""Options of a verb that belong together, so that a page can say which of them were given."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Group:
    """Some options, applied in order as one decorator."""

    def __init__(self, *options: Decorator) -> None:
        self._options = options
        self.names = tuple(parameter.name for parameter in _parameters(options))

    def __call__(self, command: Callable[..., Any]) -> Callable[..., Any]:
        """The command with these options."""
        for option in reversed(self._options):
            command = option(command)
        return command

    def typed(self, context: click.Context, *, but: Collection[str] = ()) -> list[str]:
        """Those that stand on the command line, as options are written; `but`: parameters that do not count."""
        default = click.core.ParameterSource.DEFAULT
        params = [param for param in context.command.params if param.name in self.names and param.name not in but]
        return [param.opts[0] for param in params if context.get_parameter_source(param.name or "") is not default]


def _parameters(options: tuple[Decorator, ...]) -> list[click.Parameter]:
    def nothing() -> None:
        """Carries the options."""

    command: Any = nothing
    for option in reversed(options):
        command = option(command)
    return list(reversed(command.__click_params__))
