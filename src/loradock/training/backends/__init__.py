"""The table of engines. To add one: a module with a class that is an `engine.base.Engine`, and its line here."""

from __future__ import annotations

from loradock.training.job import Engine


def engine_named(name: str) -> Engine:
    """The engine that the plan decided on: its libraries are imported here, not before."""
    if name == "fast":
        from loradock.training.backends.fast.engine import FastEngine

        return FastEngine()
    if name == "sharded":
        from loradock.training.backends.fsdp import ShardedEngine

        return ShardedEngine()
    from loradock.training.backends.trl import TrlEngine

    return TrlEngine()
