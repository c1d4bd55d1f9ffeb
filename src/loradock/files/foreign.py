"""Files from outside that cannot be read, or that a library reads: what goes wrong becomes an error with the file.

transformers, tokenizers, safetensors and a pickle's own code take a file's values for granted, so a bad value shows as
any exception, from wherever it was first used. Only calls of a library stand inside `reading`: an exception of ours has
to stay what it is, a bug.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loradock.errors import EnvironmentUnfit, InputMissing, LoradockError, ModelError, Problem, StorageError
from loradock.files import regular

SHOWN_CHARACTERS = 300
NATIVE_ERROR = re.compile(r"\(os error (\d{1,4})\)")
SPEAKING = (ValueError, RuntimeError, OSError, ImportError, AssertionError)
"""Exceptions whose text is a sentence; that of the others (a KeyError: the key alone) needs their name before it."""
OURS = "If the file is as its publisher has it, this is a fault of loradock: please report it with the file"
"""Said of an AttributeError: a library's own code met a value, or a class, that it was not written for."""
NOT_LOCKED = "the lock does not have that package: give a model without it, or install it into your own environment"
REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
) | {regular.NOT_REGULAR, regular.TOO_LARGE}
"""What a user can mend at the path itself; everything else is the disk's or the machine's."""


def unreadable(error: OSError, file: Path | str) -> LoradockError:
    """The error for a file of a model that cannot be read: InputMissing, or StorageError where the disk failed."""
    why = error.strerror or str(error)
    if error.errno in REFUSED:
        return InputMissing(f"cannot read {file}: {why}", hint=f"check the path and its permissions: ls -lL {file}")
    return StorageError(f"cannot read {file}: {why}", hint="check the disk (dmesg) and try again")


@contextmanager
def reading(
    file: Path,
    what: str,
    *,
    hint: str,
    suspects: Callable[[str], Sequence[Problem]] = lambda _: (),
    passes: tuple[type[BaseException], ...] = (),
) -> Iterator[None]:
    """Inside, a library reads `file`; what it raises is a ModelError: "FILE WHAT: what the library said".

    `suspects`: what the file itself shows, given the library's words. `passes`: exceptions that are not the file's
    fault. Those of the operating system are told as `unreadable`, a missing package as EnvironmentUnfit.
    """
    try:
        yield
    except (LoradockError, *passes):
        raise
    except ImportError as error:
        raise EnvironmentUnfit(f"{file} {what}: {said(error)}", hint=NOT_LOCKED) from error
    except Exception as error:
        if failed := of_system(error):
            raise unreadable(failed, failed.filename or file) from error
        message = said(error)
        remedy = f"{hint} {OURS}" if isinstance(error, AttributeError) else hint
        raise ModelError(f"{file} {what}: {message}", hint=remedy, problems=suspects(message)) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ModelError(f"{file} {what}: {said(error)}", hint=hint) from error


def of_system(error: BaseException) -> OSError | None:
    """The error of a system call that an exception is, or that a library written in Rust tells in its text."""
    if isinstance(error, OSError):
        # EINVAL: a place in a file that its content made up
        return error if error.errno and error.errno != errno.EINVAL else None
    native = NATIVE_ERROR.search(str(error))
    return OSError(int(native[1]), os.strerror(int(native[1]))) if native else None


def is_panic(error: BaseException) -> bool:
    """True for a panic of a library that is written in Rust: no Exception, so that nobody mistakes it for one."""
    return type(error).__name__ == "PanicException"


def said(error: BaseException) -> str:
    """What an exception says, on one line: its first, and the next where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    text = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
    if not text:
        return type(error).__name__
    return (
        text
        if isinstance(error, SPEAKING) and not isinstance(error, RecursionError)
        else f"{type(error).__name__}: {text}"
    )
