"""Streams that are captured: what would be computed is kept, and a replay of the graph computes it."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable
from itertools import count

import torch

from gpu_on_cpu.native import LIBRARY

TAPE: dict[int, Callable[[], object]] = {}
NUMBERS = count(1)


def is_capturing() -> bool:
    """Whether the current stream is captured."""
    return bool(LIBRARY.fakegpu_is_capturing(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)))


def record(again: Callable[[], object], stream: int | None = None) -> None:
    """Have `again` called at this place of each replay; of the graph of `stream`, or of the current one."""
    stream = torch.cuda.current_stream().cuda_stream if stream is None else stream
    number = next(NUMBERS)
    TAPE[number] = again
    LIBRARY.fakegpu_capture_hook(ctypes.c_void_p(stream), number)


@ctypes.CFUNCTYPE(None, ctypes.c_uint64)
def replay(number: int) -> None:
    """Called by the library, through which no exception may go: the process ends instead."""
    try:
        TAPE[number]()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(134)  # as a device's assertion ends it


def install() -> None:
    """Give the library what replays."""
    LIBRARY.fakegpu_set_replay_hook(replay)
