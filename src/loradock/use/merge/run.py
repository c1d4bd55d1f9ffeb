"""One merge from its job to its proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loradock.use.merge import proof
from loradock.use.merge.job import Job
from loradock.use.merge.merge import Merged, merge


def quietly(done: int, total: int) -> None:
    """A progress that shows nothing."""


def run(
    job: Job, output: Path, *, is_full: bool, progress: Callable[[int, int], None] = quietly
) -> tuple[Merged, Mapping[str, Any]]:
    """Merge, prove and put in place; what was written, and what the proof found. Raises as `merge` and `proof` do."""
    digests: dict[str, Any] = {}

    def prove(folder: Path, files: Mapping[str, str]) -> Mapping[str, Any]:
        proof.weights(folder, files)
        proof.names(folder, job.plan)
        if is_full:
            digests.update(proof.answers(folder, job))
        return digests

    merged = merge(
        job.plan,
        output,
        digests=job.digests,
        stop_ids=job.stop_ids,
        dtype=job.dtype,
        about=job.about,
        progress=progress,
        proof=prove,
    )
    return merged, digests
