"""A program that writes an output by files/staged.py, for strace to kill and for a full disk: HOW OUTPUT TEXT."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from loradock.errors import LoradockError
from loradock.files import staged

BEGIN, END = "/loradock-begin", "/loradock-end"  # as faults/committing.py
NAMES = ("weights", "below/settings")


def fill(folder: Path, text: str) -> None:
    """Write the files of a folder, the last one with a mode of a library's own."""
    for name in NAMES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text * 20_000)
    (folder / NAMES[-1]).chmod(0o600)


def new_folder(output: Path, text: str) -> None:
    """As merges and exports do."""
    with staged.folder(output) as folder:
        fill(folder, text)


def rewritten_folder(output: Path, text: str) -> None:
    """As the adapter of a run."""
    with staged.rewritten(output) as folder:
        fill(folder, text)


def new_file(output: Path, text: str) -> None:
    """As a GGUF file or a bundle."""
    with staged.file(output) as file:
        file.write_text(text * 40_000)


def replaced_file(output: Path, text: str) -> None:
    """As vectors."""
    with staged.file(output, replaces=True) as file:
        file.write_text(text * 40_000)


def cached_folder(output: Path, text: str) -> None:
    """As prepared rows."""
    with staged.in_cache(output.parent) as place:
        (place / output.name).mkdir()
        fill(place / output.name, text)
        (place / output.name).rename(output)


WAYS: dict[str, Callable[[Path, str], None]] = {
    each.__name__: each for each in (new_folder, rewritten_folder, new_file, replaced_file, cached_folder)
}


def main() -> None:
    way, output, text = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    os.path.exists(BEGIN)
    try:
        WAYS[way](output, text)
    except LoradockError as error:
        sys.exit(error.exit_code)
    except OSError as error:
        sys.exit(200 + (error.errno or 0))
    os.path.exists(END)


if __name__ == "__main__":
    main()
