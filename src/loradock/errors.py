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

import os
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Rows that cannot be trained on; carries one problem a row, with file and line.

    `share`: of all rows that were read, where the hint is one to leave bad ones out.
    """

    exit_code = 65

    def __init__(
        self, what: str, *, hint: str | None = None, problems: Sequence[Problem] = (), share: float = 0.0
    ) -> None:
        super().__init__(what, hint=hint, problems=problems)
        self.share = share


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
