"""What a rule across keys is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loradock.config.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class KeyProblem:
    """What is wrong; `keys` are the dotted keys that it is about, the one to change first."""

    keys: tuple[str, ...]
    what: str
    hint: str | None = None


Rule = Callable[[RunConfig], Iterator[KeyProblem]]


def repeated(key: str, names: tuple[str, ...]) -> Iterator[KeyProblem]:
    """A problem for each name that a key has more than once."""
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield KeyProblem(keys=(key,), what=f"{key} names {name} twice", hint="delete one")
