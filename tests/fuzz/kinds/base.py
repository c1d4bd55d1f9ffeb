"""What a kind of file is to the fuzz test: a good input, the one file of it that is spoilt, and who reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

Mutate = Callable[[bytes, Random], bytes]
Check = Callable[[Path, Path], list[str]]
"""What is wrong in a folder after the command, beside the good one."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of file from outside.

    `make` writes a good input into an empty folder, once; `mutate` spoils the bytes of `file` in a copy; `command` is
    what a user types in that folder, without `loradock`. `share`: its mutants for each one of a kind of share 1.
    `file` may be a pattern, of which the first match counts, and which the command itself may have made.
    `spare_cpu_seconds`: what a mutant may rightly take beyond the good input, where that is answered without work.
    `check` finds what a good exit code hides. `sign` writes what else holds a digest of the file, as somebody who edits
    it on purpose would.
    """

    name: str
    make: Callable[[Path], object]
    file: str
    mutate: Mutate
    command: tuple[str, ...]
    share: float = 1.0
    check: Check | None = None
    spare_cpu_seconds: float = 0.0
    sign: Callable[[Path], object] | None = None
