"""The table of engines. To add one: a module with a class that is an `engine.base.Engine`, and its line here."""

from __future__ import annotations

from loradock.engine.base import Engine


def engine_named(name: str) -> Engine:
    """The engine that the plan decided on: its libraries are imported here, not before."""
    if name == "fast":
        from loradock.engine.fast.engine import FastEngine

        return FastEngine()
    if name == "sharded":
        from loradock.engine.sharded import ShardedEngine

        return ShardedEngine()
    from loradock.engine.trl import TrlEngine

    return TrlEngine()
