"""The measurements: launches by arm, and milliseconds of the host by arm."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from bench.host.arms import MicroStep, Setting, fast, trl
from bench.host.card import fake_card
from bench.host.launches import Launches
from bench.host.models import narrowed
from bench.host.silent import silent_launches
from bench.host.steps import around_fast, around_trl
from loradock.training.backends.fast.attention.flash_torch import FlashTorch
from loradock.training.backends.fast.kernels import fused

DOCUMENT_TOKENS = 512
NARROW_TOKENS = 8
"""Of the micro-step that is timed: as few as products of matrices take without becoming those of vectors."""
WARM_UPS = 2
KEEP_HEAP = {-1: 1 << 30, -2: 256 << 20, -3: 1 << 30}
"""mallopt's M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD: freed memory stays, as with torch's allocator for cards."""
ARMS: dict[str, Callable[[Setting], MicroStep]] = {
    "trl, checkpointed": partial(trl, is_checkpointed=True),
    "fast, checkpointed": partial(fast, attention=FlashTorch(), kernels=fused, is_checkpointed=True),
    "trl": partial(trl, is_checkpointed=False),
    "fast": partial(fast, attention=FlashTorch(), kernels=fused),
    "fast, cached": partial(fast, attention=FlashTorch(), kernels=fused, is_cached=True),
}


def count(values: dict[str, Any], *, tokens: int) -> dict[str, Any]:
    """Launches, by arm and by kernel, of a micro-step of these many tokens in bfloat16, and waits for the card."""
    document = min(DOCUMENT_TOKENS, tokens)
    found: dict[str, Any] = {}
    with fake_card():
        setting = Setting(values=values, tokens=tokens, document=document, device="cuda", dtype=torch.bfloat16)
        for name, arm in ARMS.items():
            micro_step = arm(setting)
            with Launches():
                micro_step()
            with Launches() as launches:
                micro_step()
            by_name = dict(sorted(launches.by_name.items()))
            found[name] = {"launches": launches.total, "waits": launches.waits, "by_name": by_name}
    return found


def time_micro_steps(values: dict[str, Any], *, rounds: int) -> dict[str, Any]:
    """Milliseconds of the host a micro-step, by arm: the least and the median of interleaved repeats.

    CPU time of the thread that computes, in float32 (TRL without autocast and casts, which it has on a card).
    """
    with quiet_machine(), silent_launches():
        steps = {name: arm(narrow(values)) for name, arm in ARMS.items()}
        return interleaved(steps, rounds=rounds)


def time_around(values: dict[str, Any], *, rounds: int) -> dict[str, Any]:
    """What stands around the one micro-step of an optimiser step: milliseconds, launches, waits; TRL's and ours."""
    with quiet_machine():
        return {"trl": around_trl(narrow(values), rounds=rounds), "fast": around_fast(narrow(values), rounds=rounds)}


def narrow(values: dict[str, Any]) -> Setting:
    """The setting that is timed."""
    tokens = NARROW_TOKENS
    return Setting(values=narrowed(values), tokens=tokens, document=tokens, device="cpu", dtype=torch.float32)


@contextmanager
def quiet_machine() -> Iterator[None]:
    """One thread, a heap that is not given back, no warnings, no collection of garbage from before."""
    for parameter, value in KEEP_HEAP.items():
        ctypes.CDLL(None).mallopt(parameter, value)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings(action="ignore"):
        try:
            yield
        finally:
            gc.unfreeze()
            torch.set_num_threads(threads)


def interleaved(steps: dict[str, Callable[[], Any]], *, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds by step: each in turn, again and again."""
    for step in steps.values():
        for _ in range(WARM_UPS):
            step()
    gc.collect()
    gc.freeze()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.thread_time()
            step()
            times[name].append(1e3 * (time.thread_time() - start))
    return {name: {"min": min(each), "median": statistics.median(each)} for name, each in times.items()}
