"""One of two processes of a run whose steps are made in four ways in turn: `worker.py FOLDER train ...`, as a script.

Of four steps one is made by rank 0 alone (rank 1 waits), one by both without summing up, one as it is, and one without
signing and verifying the reports that come meanwhile. The seconds, by way, go to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed

from loradock import cli
from loradock.distributed import collectives
from loradock.distributed.seal import SIGNATURE_BYTES, Seal
from loradock.training.loop import Loop

WAYS = ("alone", "apart", "pair", "unsigned")


@dataclass
class Timing:
    """What was measured; while it is not summing, `all_reduce` does nothing; while not signing, reports are plain."""

    is_summing: bool = True
    is_signing: bool = True
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})


def patched(timing: Timing) -> None:
    """Make the loop's steps in turn, and time them."""
    real_step, real_sum = Loop.make_step, torch.distributed.all_reduce
    real_close, real_open = Seal.close, Seal.open

    def all_reduce(*given: Any, **more: Any) -> Any:
        return real_sum(*given, **more) if timing.is_summing else None

    def close(self: Seal, speaker: str, content: bytes) -> bytes:
        return real_close(self, speaker, content) if timing.is_signing else content

    def opened(self: Seal, speaker: str, sealed: bytes) -> bytes | None:
        is_plain = sealed.startswith(b"{")  # a report of the other process, which may be at another way
        if timing.is_signing and not is_plain:
            return real_open(self, speaker, sealed)
        return sealed if is_plain else sealed[SIGNATURE_BYTES:]

    def make_step(self: Loop, inputs: dict[str, Any]) -> None:
        is_first = self.step < len(WAYS)  # as it is: what a run looks at after its first step has to be there
        way = "pair" if is_first else WAYS[self.step % len(WAYS)]
        torch.distributed.barrier()
        if way == "alone" and self.job.rank:
            self.meter.steps += 1
            self.step += 1
            return
        timing.is_summing, timing.is_signing = way in ("pair", "unsigned"), way != "unsigned"
        began = time.perf_counter()
        real_step(self, inputs)
        if timing.is_summing:
            collectives.any_of(False)  # whether a signal came: the other sum of every step
        if not is_first:
            timing.seconds[way].append(time.perf_counter() - began)
        timing.is_summing = timing.is_signing = True

    torch.distributed.all_reduce = all_reduce
    Loop.make_step = make_step
    Seal.close, Seal.open = close, opened


if __name__ == "__main__":
    measured, (_, folder, *words) = Timing(), sys.argv
    patched(measured)
    sys.argv = ["loradock", *words]
    try:
        cli.main()
    finally:
        Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(measured.seconds))
