"""The error tree, and the exit code of each way a run can end.

====  ==================================================  =====================
code  meaning                                             class
====  ==================================================  =====================
0     finished and verified                               -
2     usage: an unknown command or option (click's own)   -
64    usage: options that contradict or cannot be taken   UsageError
65    the data are bad                                    DataError
66    an input is missing                                 InputMissing
69    a hub did not answer or refused                     HubError
70    a bug in loradock                                   LoradockError, and anything uncaught
71    the environment cannot train (packages, driver)     EnvironmentUnfit
73    disk full or over quota                             DiskFull
74    reading or writing failed                           StorageError
75    stopped by a signal, a new step was committed       Stopped
76    stopped by a signal, no progress was committed      Interrupted
77    the output directory is not writable                NotWritable
78    the configuration or the model it names is bad      ConfigError, ModelError
79    training diverged (a non-finite loss)               Diverged
80    out of GPU memory                                   OutOfMemory
81    the GPU is suspect                                  GpuSuspect
82    hung: no progress within its limit              Hung
83    no acceptable checkpoint to resume from             NoCheckpoint
84    another run holds the output directory              Locked
85    a run was repeated, or would be, with other results NotReproduced
86    a repeat is within a measured bound, not equal      WithinBound
====  ==================================================  =====================

An error says what is wrong and a remedy that can be typed. As text it has no secret in it, and nothing that a
terminal would obey. Where an input has several problems, one error carries all of them, each with its file and line.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loradock.text import redact
from loradock.text.terminal import on_one_line, shown

SHOWN_PROBLEMS = 20


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong at one place, or the same thing at `count` places, of which `also` names a few further ones.

    `line` counts from 1; None where a file has no lines; below 0 it is minus the number of a record that shares its
    line with others. `excerpt`: how the first of them begins.
    """

    what: str
    file: str | None = None
    line: int | None = None
    hint: str | None = None
    excerpt: str | None = None
    count: int = 1
    also: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """`file:line`, `file: record 7`, or as much of it as there is."""
        return shown_place(self.file, self.line)

    def __str__(self) -> str:
        places = ", ".join((self.place, *self.also))
        more = self.count - 1 - len(self.also)
        places += f" and {more} more" if more > 0 else ""
        text = f"{places}: {self.what}" if places else self.what
        text += f", in {self.excerpt}" if self.excerpt else ""
        return on_one_line(f"{text} ({self.hint})" if self.hint else text)


def shown_place(file: str | None, line: int | None) -> str:
    """A place as `Problem` holds it, in words."""
    if line is not None and line < 0:
        return f"{file}: record {-line}" if file else f"record {-line}"
    return ":".join(str(part) for part in (file, line) if part is not None)


class LoradockError(Exception):
    """What went wrong, the remedy, and the problems behind it; `exit_code` ends the process."""

    exit_code = 70

    def __init__(self, what: str, *, hint: str | None = None, problems: Sequence[Problem] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.problems = tuple(problems)

    def __str__(self) -> str:
        lines = [f"error: {self.what}"]
        lines += [f"  {problem}" for problem in self.problems[:SHOWN_PROBLEMS]]
        if len(self.problems) > SHOWN_PROBLEMS:
            lines.append(f"  ... and {len(self.problems) - SHOWN_PROBLEMS} more")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return shown(redact.without("\n".join(lines), redact.of(os.environ)))


class UsageError(LoradockError):
    """Options that cannot be used together, or one that is missing."""

    exit_code = 64


class DataError(LoradockError):
    """Rows that cannot be trained on; carries one problem a row, with file and line."""

    exit_code = 65


class InputMissing(LoradockError):
    """A file or directory that the user named does not exist or cannot be read."""

    exit_code = 66


class HubError(LoradockError):
    """A model or data set hub did not answer, refused, or is switched off."""

    exit_code = 69


class EnvironmentUnfit(LoradockError):
    """This machine or its packages cannot do what was asked."""

    exit_code = 71


class DiskFull(LoradockError):
    """No space (or quota) left where loradock writes."""

    exit_code = 73


class StorageError(LoradockError):
    """Reading or writing failed for a reason other than space or permission."""

    exit_code = 74


class Stopped(LoradockError):
    """A signal stopped the run; a step that was new since its start is committed."""

    exit_code = 75


class Interrupted(LoradockError):
    """A signal stopped the run before anything new was committed."""

    exit_code = 76


class NotWritable(LoradockError):
    """The output or cache directory cannot be written."""

    exit_code = 77


class ConfigError(LoradockError):
    """The configuration is bad; carries every problem of the file with its line."""

    exit_code = 78


class ModelError(LoradockError):
    """The model that the configuration names cannot be trained as asked."""

    exit_code = 78


class Diverged(LoradockError):
    """The loss or a gradient became non-finite."""

    exit_code = 79


class OutOfMemory(LoradockError):
    """The GPU has too little memory for the batch shape."""

    exit_code = 80


class GpuSuspect(LoradockError):
    """The GPU lost data, or does not answer: what it computes cannot be trusted."""

    exit_code = 81


class Hung(LoradockError):
    """No sign of life came within the limit of the phase."""

    exit_code = 82


class NoCheckpoint(LoradockError):
    """There is no checkpoint that this run may resume from."""

    exit_code = 83


class Locked(LoradockError):
    """Another run holds the output directory."""

    exit_code = 84


class NotReproduced(LoradockError):
    """A run that was made again parted from the first one, or something differs that may make it."""

    exit_code = 85


class WithinBound(LoradockError):
    """A run that was made again is not equal, and as near as the measured bound of what differs."""

    exit_code = 86


NOT_REGULAR, TOO_LARGE = errno.ENOTSUP, errno.EFBIG
"""What `files.regular` raises of a file that it does not read."""
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
MACHINE = (
    *OUT_OF_SPACE, *OUT_OF_DESCRIPTORS, errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EROFS, errno.ENOMEM, errno.EINTR,
)  # fmt: skip
"""What a system call says where the machine failed, and not who asked: one may ask the same again."""
REFUSED = (
    errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, NOT_REGULAR, TOO_LARGE,
)  # fmt: skip
"""What a system call says of a path that can be mended where it was written."""
SHOWN_PATH = 300


def refused_path(error: BaseException) -> InputMissing | None:
    """The error for a path that the system refuses, wherever it was first looked at; None for all else."""
    if not (isinstance(error, OSError) and error.errno in REFUSED and error.filename):
        return None
    path = str(error.filename)
    shown = path if len(path) <= SHOWN_PATH else f"{path[:SHOWN_PATH]}... ({len(path):,} characters)"
    hint = "a name has at most 255 bytes" if error.errno == errno.ENAMETOOLONG else f"ls -ld {shown}"
    return InputMissing(f"cannot use the path {shown}: {error.strerror}", hint=hint)


def storage_error(error: OSError, path: Path) -> StorageError | DiskFull | NotWritable:
    """The loradock error for an OSError while writing."""
    if error.errno in OUT_OF_SPACE:
        return DiskFull(f"no space left for {path}", hint="free space, or --output a directory on another disk")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return NotWritable(
            f"cannot write {path}: {error.strerror}", hint="--output a directory that this user may write"
        )
    if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return NotWritable(f"cannot write {path}: {error.strerror}", hint="--output another path")
    if error.errno in (NOT_REGULAR, TOO_LARGE):
        return StorageError(f"cannot use {path}: {error.strerror}", hint=f"ls -lL {path}")
    return StorageError(f"writing {path} failed: {error.strerror}", hint=_remedy(error.errno))


def machine_error(error: BaseException, *, within: Path | None = None) -> LoradockError | None:
    """The error for what the machine did: a system call that failed, or memory that ran out; None for all else.

    Libraries in C++ and Rust, and the loader of shared libraries, tell it in the text of errors of their own, or an
    error is raised from that one. `within` is where the run reads and writes: few of them name the file.
    """
    failed = _failed_call(error, within=within) or _unloaded(error)
    return failed or (machine_error(error.__cause__, within=within) if error.__cause__ else None)


def _failed_call(error: BaseException, *, within: Path | None) -> LoradockError | None:
    if isinstance(error, OSError) and error.errno:
        number = error.errno
    else:
        number = next((each for each in MACHINE if os.strerror(each) in str(error)), None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        said = _first_line(error) or "an allocation was refused"
        return EnvironmentUnfit(f"out of host memory: {said}", hint="give the process, or its container, more memory")
    if number not in MACHINE:
        return None
    file = error.filename if isinstance(error, OSError) else None
    if number in OUT_OF_SPACE or number == errno.EROFS:
        return storage_error(OSError(number, os.strerror(number)), Path(str(file or within or "the files of this run")))
    what = f"reading or writing {file}" if file else "reading or writing"
    place = f", in a run in {within}" if within and not file else ""
    said = "" if isinstance(error, OSError) else f": {_first_line(error)}"
    return StorageError(f"{what} failed{place}: {os.strerror(number)}{said}", hint=_remedy(number))


def _unloaded(error: BaseException) -> EnvironmentUnfit | None:
    """The error where the dynamic loader refused a library, for Python's import or for ctypes: it may not say why."""
    if isinstance(error, ImportError):
        is_loaders = str(error.path).endswith(".so") and not str(error).startswith("cannot import name")
    else:
        is_loaders = isinstance(error, OSError) and not error.errno and "shared object" in str(error)
    hint = "look at its disk (dmesg) and at free memory; else install it again"
    return EnvironmentUnfit(f"a library cannot be loaded: {error}", hint=hint) if is_loaders else None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _remedy(number: int | None) -> str:
    return (
        "raise the limit of open files: ulimit -n 65536"
        if number in OUT_OF_DESCRIPTORS
        else "check the disk (dmesg) and try again"
    )
