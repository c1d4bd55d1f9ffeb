"""The table of engines. To add one: a module with a class that is an `engine.base.Engine`, and its line here."""

from __future__ import annotations

from loradock.engine.base import Engine
from loradock.optimizations.base import Decision


def choose(asked: str) -> tuple[Engine, Decision]:
    """The engine that runs this job, and why."""
    from loradock.engine.trl import TrlEngine

    why = "asked for" if asked == "trl" else "the reference engine fits every model"
    return TrlEngine(), Decision(name="engine", value="trl", why=why)
