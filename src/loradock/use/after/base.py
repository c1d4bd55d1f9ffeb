"""The type of what is made of a finished run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.config.schema import RunConfig
from loradock.training.run_dir import record


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as it lies in its directory: what is asked of it now, the content of its run.json, the names there."""

    config: RunConfig
    directory: Path
    content: Mapping[str, Any]
    names: Collection[str]


@dataclass(frozen=True, kw_only=True)
class Finished(Run):
    """A finished run in whose directory this process alone writes.

    `fence` raises Locked where another run has taken the directory over; `note` shows a line to a person.
    """

    fence: Callable[[], None]
    note: Callable[[str], None]

    @property
    def trusted(self) -> tuple[str, ...]:
        """The base whose own code a person trusts, where there is one."""
        name = self.config.model.trust_remote_code
        return (name,) if name else ()

    def put(self, **parts: Any) -> None:
        """Add parts to run.json. Raises Locked, StorageError, DiskFull or NotWritable; the record is whole anyway."""
        record.amend(self.directory, parts, fence=self.fence)


@dataclass(frozen=True, kw_only=True)
class After:
    """One thing that is made of a finished run.

    `is_due` says whether it is asked for and not there yet, and looks at nothing else; `make` makes it, whole or not at
    all. `check` raises before anything is trained where it could not be made.
    """

    is_due: Callable[[Run], bool]
    make: Callable[[Finished], None]
    check: Callable[[RunConfig], None] = lambda _config: None
