"""What came of a row, and the journal that keeps it: a line as soon as its batch is done, read when the command runs again.

A journal line holds `run`, a digest of the model and all settings, and the row's key, so that one file serves any number
of commands and never gives the result of another model, row or setting. The last line of a process that was killed may
be torn: it is cut off, and its row is evaluated again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from loradock.errors import Locked, storage_error

NAME = "journal.jsonl"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a row: `score` is 1 or 0 for right or wrong, else the metric; of a loss it is the sum over `tokens`.

    `given`: the answer, empty where none was found. `logprobs`: of each candidate, float. `normalised`: the candidate
    with the highest log-probability per character. `text` was generated, `finish` says how it ended: eos or length.
    """

    row: int
    key: str
    place: str
    answer: str
    given: str = ""
    score: float
    normalised: str | None = None
    logprobs: tuple[float, ...] | None = None
    text: str | None = None
    finish: str | None = None
    tokens: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON: what is not known is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """What `as_dict` gave."""
        logprobs = values.get("logprobs")
        return cls(**(values | {"logprobs": None if logprobs is None else tuple(logprobs)}))


class Journal:
    """The outcomes of a directory, by run and key and row; `add` flushes to the operating system."""

    def __init__(self, file: Path, descriptor: int) -> None:
        self.file, self._descriptor = file, descriptor
        self._known: dict[tuple[str, str, int], dict[str, Any]] = {}
        whole = 0
        for line in _whole_lines(descriptor):
            whole += len(line)
            values = json.loads(line)
            self._known[values.pop("run"), values["key"], values["row"]] = values
        os.ftruncate(descriptor, whole)

    def known(self, run: str, key: str, row: int) -> Outcome | None:
        """What came of a row before; None where it is still to be evaluated."""
        values = self._known.get((run, key, row))
        return Outcome.of(values) if values else None

    def add(self, run: str, outcomes: Iterable[Outcome]) -> None:
        """Append rows in one write. DiskFull, NotWritable or StorageError."""
        text = "".join(json.dumps({"run": run, **each.as_dict()}) + "\n" for each in outcomes)
        rest = memoryview(text.encode())
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise storage_error(error, self.file) from error


def _whole_lines(descriptor: int) -> Iterator[bytes]:
    """The lines up to the first that is torn or no JSON."""
    with open(descriptor, "rb", closefd=False) as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                return
            try:
                json.loads(line)
            except ValueError:
                return
            yield line


@contextmanager
def journal_in(directory: Path) -> Iterator[Journal]:
    """The journal of a directory, which is made. Locked where another process evaluates there."""
    file = directory / NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise storage_error(error, file) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another process evaluates into {directory}"
            raise Locked(what, hint="wait for it, or --output another directory") from None
        yield Journal(file, descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
