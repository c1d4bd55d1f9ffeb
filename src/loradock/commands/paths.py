"""The types of options and arguments that are paths: `~` and variables are expanded as in a configuration."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click

from loradock.config.places import expanded
from loradock.errors import InputMissing, UsageError
from loradock.files import nearby


class LocalPath(click.Path):
    """A path of this machine. UsageError for a variable in it that is not set, and for `-`; InputMissing where it has
    to exist and does not, or is a file where a directory is wanted, or the reverse.

    A command that ends with a file goes on with it after a kill, which no stream does. Where `path_type` is str, the
    configuration says what `-` is.
    """

    def __init__(self, *, path_type: type = Path, **more: Any) -> None:
        super().__init__(path_type=path_type, **more)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, expanded before it is looked for."""
        if value == "-" and self.type is not str:
            name = param.opts[-1] if isinstance(param, click.Option) else getattr(param, "metavar", None) or "it"
            what = f"{name} is a path here, and - means standard input or output elsewhere"
            raise UsageError(what, hint="give the name of a file; ./- is one that is called -")
        path = expanded(os.fspath(value))
        if self.exists and not os.path.exists(path):
            raise InputMissing(f"{path} does not exist", hint=nearby.hint(Path(path), path))
        self._check_kind(path)
        return super().convert(path, param, ctx)

    def _check_kind(self, path: str) -> None:
        error = InputMissing if self.exists else UsageError
        if not self.file_okay and os.path.isfile(path):
            folder = shlex.quote(os.path.dirname(path) or ".")
            hint = f"name the directory that it is in: {folder}" if self.exists else "name another, or move the file"
            raise error(f"{path} is a file, where a directory is wanted", hint=hint)
        if not self.dir_okay and (os.path.isdir(path) or path.endswith(os.sep)):
            hint = f"name a file in it: ls {shlex.quote(path)}" if self.exists else "name a file in it, or another"
            verb = "is" if os.path.isdir(path) else "names"
            raise error(f"{path} {verb} a directory, where a file is wanted", hint=hint)


class OutputFile(LocalPath):
    """A file to write, which may replace an earlier one: UsageError where its name is one of another kind of file.

    `suffixes` are those of the kind, the usual one first. A pipe or a device may have any name. A new file may not: the
    same command would refuse to replace it.
    """

    def __init__(self, *suffixes: str) -> None:
        super().__init__(dir_okay=False)
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        path = super().convert(value, param, ctx)
        is_device = Path("/dev") in path.parents  # /dev/stdout is a file where the shell made it one
        is_special = is_device or (path.exists() and not path.is_file())
        if not is_special and path.suffix.lower() not in self.suffixes:
            kind = " or ".join(self.suffixes)
            what = f"{path}: a file that is written here has a name in {kind}"
            if path.is_file():
                what = f"{path} exists, and by its name it is no {kind} file; it would be replaced"
            raise UsageError(what, hint=f"name another file, such as {shlex.quote(f'{path}{self.suffixes[0]}')}")
        return path


class PathsAfter(click.ParamType):
    """Texts with a path at their end, with commas between them: `NAME=FILE,...`, `wheel:FILE`."""

    name = "text"

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same text, its paths expanded."""
        parts = [part.partition(self.mark) for part in str(value).split(",")]
        return ",".join(name + mark + expanded(path) for name, mark, path in parts)
