"""What ended a run, as an error with an exit code: libraries say it in their own words."""

from __future__ import annotations

from pathlib import Path

from loradock.distributed import collectives
from loradock.distributed.place import continuing
from loradock.errors import EnvironmentUnfit, Interrupted, LoradockError, NoCheckpoint, OutOfMemory, Stopped
from loradock.files import foreign
from loradock.files.system_errors import machine_error, storage_error
from loradock.process import signals
from loradock.text.terminal import first_line
from loradock.training.checkpoint.manifest import DamagedCheckpoint


def as_loradock_error(error: BaseException, directory: Path, *, has_committed: bool) -> LoradockError:
    """The error with its exit code; one that nobody foresaw is a bug (70) and keeps its type.

    Where a signal came, what broke in its wake (a worker that it ended, too) is its doing, and so is what nobody
    foresaw: a library may raise an error of its own over the interrupt that it was given.
    """
    by = signals.requested()
    if isinstance(error, KeyboardInterrupt) or (by and isinstance(error, (EnvironmentUnfit, OSError, RuntimeError))):
        return stopped(by, directory, has_committed=has_committed)
    if isinstance(error, LoradockError):
        return error
    if isinstance(error, DamagedCheckpoint):
        hint = "the same command again falls back to the checkpoint before it"
        return NoCheckpoint(f"a checkpoint changed while it was read: {error}", hint=hint)
    if collectives.is_cut_off(error):
        what = f"another rank of this run has ended, or cannot be reached: {error}"
        return EnvironmentUnfit(
            what, hint="see what that one says; the same command continues from the last checkpoint"
        )
    if type(error).__name__ == "OutOfMemoryError":  # torch's, without importing torch
        first = first_line(error)
        return OutOfMemory(f"out of GPU memory: {first}", hint="free the GPU, or use a smaller model or a larger GPU")
    if failed := machine_error(error, within=directory):
        return failed
    if isinstance(error, OSError):
        return storage_error(error, Path(error.filename or directory))
    if native := foreign.of_system(error):
        return storage_error(native, directory)
    if by:
        return stopped(by, directory, has_committed=has_committed)
    return LoradockError(f"unexpected {type(error).__name__}: {error}", hint="report this with run.json")


def stopped(by: str | None, directory: Path, *, has_committed: bool) -> LoradockError:
    """That a signal ended the run, and what is kept of it."""
    kind, committed = (Stopped, "the last step is saved") if has_committed else (Interrupted, "no new step was saved")
    return kind(f"stopped by {by or 'a signal'}; {committed}", hint=continuing(directory))
