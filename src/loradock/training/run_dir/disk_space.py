"""Disk for a run: what it will write, asked for before the first step, and again before each checkpoint.

`statvfs` knows the file system and not the quota of a user on it: one that is over its quota still ends with DiskFull,
when the writing fails.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from loradock.catalog import optimizers
from loradock.errors import DiskFull
from loradock.machine import Host
from loradock.machine.answers import Space
from loradock.text.amounts import free_text, needed_text

WEIGHT_BYTES = 4
TENSOR_BYTES = 900
"""What a tensor costs besides its values: its names, and its entries in the two files."""
STATE_BYTES = 24 << 10
"""Generators of a process, schedule, adapter_config.json and manifest."""
RECORD_BYTES = 8 << 20
"""run.json, metrics.jsonl, status.json, the curve and the model card, and what a file system rounds up."""
SPARE_BYTES = 1 << 20
CHECKPOINT_FILES = 6
RECORD_FILES = 32


def checkpoint_bytes(trainable_weights: int, *, optimizer: str, tensors: int = 0, processes: int = 1) -> int:
    """Bytes of one checkpoint: the float32 adapter, the optimiser's moments, generators, and the small files.

    `tensors` is the number of trainable tensors: their names count in a small adapter, and not in a large one.
    """
    values = trainable_weights * (WEIGHT_BYTES + optimizers.named(optimizer).state_bytes)
    return int(values) + tensors * TENSOR_BYTES + processes * STATE_BYTES


def before_run(
    directory: Path,
    *,
    checkpoint_bytes: int,
    adapter_bytes: int,
    keep: int,
    keeps_best: bool,
    held: Collection[int],
    planned: int | None = None,
) -> str:
    """One line that says what the run will write; DiskFull where that has no room, with what would help.

    The next checkpoint is written before the oldest one goes, so there are `keep` + 1 at once, and the best one. `held`
    are the bytes of each checkpoint that is there already, `planned` how many will yet be written (None: any number).
    """
    room = Host().space(Host().nearest(directory))
    most = keep + 1 + int(keeps_best)
    new = max(1, most - len(held)) if planned is None else min(planned, max(1, most - len(held)))
    need = new * checkpoint_bytes + adapter_bytes + RECORD_BYTES
    kept = f"{keep + int(keeps_best)} checkpoints of {needed_text(checkpoint_bytes)}"
    if room is None:
        return f"disk: {kept}; what is free for {directory} is not known"
    if need > room.free_bytes:
        what = f"{directory} needs {needed_text(need)} for {new} more checkpoint(s) and the adapter, and has"
        fewer = _fewer(keep, short=need - room.free_bytes, each=checkpoint_bytes, new=new)
        raise DiskFull(
            f"{what} {free_text(room.free_bytes)} free",
            hint=_remedy(need - room.free_bytes, fewer=fewer),
        )
    _refuse_few_files(directory, room, need=new * CHECKPOINT_FILES + RECORD_FILES)
    return f"disk: {kept} and the adapter, {needed_text(need)} to write; {free_text(room.free_bytes)} free"


def before_save(directory: Path, *, checkpoint_bytes: int) -> None:
    """DiskFull where the next checkpoint will not fit: known before a byte of it is written."""
    room = Host().space(Host().nearest(directory))
    if room is None:
        return
    need = checkpoint_bytes + SPARE_BYTES
    if need > room.free_bytes:
        free = free_text(room.free_bytes)
        what = f"the next checkpoint in {directory} needs {needed_text(need)}, and {free} are free"
        hint = f"{_remedy(need - room.free_bytes, fewer=None)}; the same command then continues"
        raise DiskFull(what, hint=hint)
    _refuse_few_files(directory, room, need=CHECKPOINT_FILES)


def before_output(output: Path, need: int) -> None:
    """DiskFull where there is less than `need` bytes where `output` will lie; nothing where that is not known."""
    room = Host().space(Host().nearest(output.absolute()))
    if room is not None and need > room.free_bytes:
        what = f"{output} needs {needed_text(need)}, and {free_text(room.free_bytes)} are free"
        raise DiskFull(
            what, hint=f"free {needed_text(need - room.free_bytes)} there, or name an output on a larger disk"
        )


def _refuse_few_files(directory: Path, room: Space, *, need: int) -> None:
    """File systems without a table of inodes have no such limit."""
    if room.free_inodes is not None and room.free_inodes < need:
        what = f"{directory} lies on a disk that takes {room.free_inodes} more files (inodes), and {need} are needed"
        raise DiskFull(what, hint=f"remove {need - room.free_inodes} files there, or --output a directory elsewhere")


def _fewer(keep: int, *, short: int, each: int, new: int) -> int | None:
    """The largest checkpoints.keep that would fit; None where none does."""
    less = -(-short // each)
    return keep - less if less < min(keep, new) else None


def _remedy(short: int, *, fewer: int | None) -> str:
    lower = f"--set checkpoints.keep={fewer}, or " if fewer else ""
    return f"{lower}free {needed_text(short)} there, or --output a directory on a larger disk"
