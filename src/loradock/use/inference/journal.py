"""Results on their way to a file: journalled as they come, put in place whole at the end, found again after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self, cast

from loradock.errors import UsageError
from loradock.files import atomic_io, foreign_json, lock, regular
from loradock.files.system_errors import storage_error


class Journal:
    """Lines of a result in the making, each under a key, in `.NAME.journal` beside `output`.

    As context manager, in which `done` holds those of an earlier attempt; what is added is on the disk when `flush`
    returns.
    """

    def __init__(
        self, output: Path, *, identity: Mapping[str, Any], takes: Callable[[object], bool] = lambda _: True
    ) -> None:
        """`takes` says of what was journalled under a key whether it is whole: what is not is made again."""
        self.output, self._identity, self._takes = output, dict(identity), takes
        self._file = output.with_name(f".{output.name}.journal")
        self.done: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """UsageError where a journal of other settings lies there, Locked where another process writes it."""
        with ExitStack() as around:
            try:
                self.output.parent.mkdir(parents=True, exist_ok=True)
                around.enter_context(lock.writing(self.output))
                self.done = self._read()
                self._stream = around.enter_context(self._file.open("a", encoding="utf-8"))
                if self._stream.tell() == 0:
                    self._write({"identity": self._identity})
                    self.flush()
            except OSError as error:
                raise storage_error(error, self._file) from error
            self._around = around.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._around.close()

    def add(self, key: str, lines: Any) -> None:
        """Note what came of a row."""
        self.done[key] = lines
        self._write({"key": key, "lines": lines})

    def flush(self) -> None:
        """Return once all that was added is on the disk. Raises DiskFull, NotWritable or StorageError."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise storage_error(error, self._file) from error

    def finish(self, content: str) -> None:
        """Put the whole result in place; the journal goes."""
        try:
            atomic_io.replace(self.output, content)
            self._file.unlink()
            atomic_io.sync_folder(self.output.parent)
        except OSError as error:
            raise storage_error(error, self.output) from error

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._stream.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            raise storage_error(error, self._file) from error

    def _read(self) -> dict[str, Any]:
        """The whole lines of an earlier attempt; a line that a kill cut is taken off the file."""
        try:
            content = regular.read(self._file, most_bytes=regular.MOST_LINES_BYTES)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise storage_error(error, self._file) from error
        complete = content[: content.rfind(b"\n") + 1]
        if complete != content:
            os.truncate(self._file, len(complete))
        lines = [_object(line) for line in complete.split(b"\n")[:-1]]
        if lines:
            self._check(lines[0].get("identity"))
        lines_of = {line["key"]: line.get("lines") for line in lines[1:] if isinstance(line.get("key"), str)}
        return {key: entry for key, entry in lines_of.items() if self._takes(entry)}

    def _check(self, recorded: object) -> None:
        """UsageError where an earlier attempt was asked for something else."""
        remedy = f"name another --output, or begin again: rm {self._file}"
        if not isinstance(recorded, dict):
            raise UsageError(f"{self._file} does not say what it was begun for: its first line is damaged", hint=remedy)
        recorded_identity = cast("dict[str, Any]", recorded)
        if names := sorted(
            key
            for key in {**recorded_identity, **self._identity}
            if recorded_identity.get(key) != self._identity.get(key)
        ):
            raise UsageError(f"{self.output} was begun with another {', '.join(names)}", hint=remedy)


def _object(line: bytes) -> dict[str, Any]:
    """What a line says; nothing where it is damaged: what it said is made again."""
    with suppress(ValueError):
        content = foreign_json.loads(line)
        return cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    return {}
