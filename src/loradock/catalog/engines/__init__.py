"""The table of engines, and of the ways of sharing a model that they serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from loradock.catalog.engines.base import Cannot, Engine, Limit, Mode
from loradock.catalog.engines.members import FAST, PEFT, SHARDED, ZERO
from loradock.catalog.engines.modes import ALONE, FSDP

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (FAST, PEFT, SHARDED, ZERO)}
PREFERRED = FAST
"""Taken wherever it serves; its fallback where it does not."""
SHARDING = FSDP
"""How a model is shared that does not fit one GPU, unless another way is asked for."""
MODES: dict[str, Mode] = {mode.name: mode for engine in ENGINES.values() for mode in engine.modes}
"""By their names; `none` is that of one process."""

if TYPE_CHECKING:
    EngineName = str
    ModeName = str
else:
    EngineName = Literal["auto", *ENGINES]
    ModeName = Literal["auto", *(name for name in MODES if name != ALONE.name)]

__all__ = ["ENGINES", "MODES", "PREFERRED", "SHARDING", "Cannot", "Engine", "EngineName", "Limit", "Mode", "ModeName"]


def of(name: str) -> Engine:
    """The engine of this name; KeyError where there is none."""
    return ENGINES[name]


def serving(mode: str) -> tuple[Engine, ...]:
    """The engines that share a model in this way, the preferred one first; KeyError for an unknown one."""
    return tuple(engine for engine in ENGINES.values() if MODES[mode] in engine.modes)


def eligible(name: str) -> tuple[Engine, ...]:
    """The engines that a value of `engine` leaves to choose from: auto all of them."""
    return tuple(ENGINES.values()) if name == "auto" else (of(name),)


def formerly(name: object) -> Engine | None:
    """The engine that older runs recorded under this name."""
    return next((engine for engine in ENGINES.values() if engine.former_name and engine.former_name == name), None)
