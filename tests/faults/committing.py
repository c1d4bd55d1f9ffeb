"""A program that commits checkpoints of plain bytes, for strace to watch and to kill.

What it does for the steps lies between two calls on files that there are not (BEGIN, END), so that a trace can be cut.
The variants are the negative controls: `without-fsync` never flushes, `in-place` writes into the visible folder.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from loradock.training.checkpoint import store
from loradock.training.checkpoint.store import Checkpoints

BEGIN, END = "/loradock-begin", "/loradock-end"
RUN_ID = "run-of-the-test"


def content(step: int) -> dict[str, bytes]:
    """The files of a step: different bytes for every step."""
    return {"adapter_model.safetensors": bytes([step % 251]) * 5000, "training_state.pt": bytes([step % 241]) * 9000}


def committer(folder: Path, *, keep: int = 1) -> Checkpoints:
    """What commits for the run of these tests."""
    return Checkpoints(folder, run_id=RUN_ID, fingerprint={"train.seed": "0"}, keep=keep)


class InPlace(Checkpoints):
    """How it is not to be done: the folder is visible from its first file on."""

    def commit(self, step: int, **parts: object) -> Path:
        target = self.folder / f"checkpoint-{step}"
        target.mkdir()
        self._fill(target, step=step, files=content(step), progress={"step": step})
        self._rotate({step})
        return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("keep", type=int)
    parser.add_argument("steps", type=int, nargs="*")
    parser.add_argument("--variant", choices=("without-fsync", "in-place"))
    options = parser.parse_args()
    commits = committer(options.folder, keep=options.keep)
    if options.variant == "in-place":
        commits = InPlace(options.folder, run_id=RUN_ID, fingerprint={}, keep=options.keep)
    if options.variant == "without-fsync":
        store.atomic_io.os.fsync = lambda _descriptor: None
    os.path.exists(BEGIN)
    for step in options.steps:
        commits.commit(step, files=content(step), progress={"step": step})
    os.path.exists(END)


if __name__ == "__main__":
    main()
