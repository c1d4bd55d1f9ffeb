"""Live bytes of tensors: every storage from its birth to its end, and the most that lived at one time."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operators give back while it is on; fake and meta tensors count as real ones do.

    `now` and `peak` are bytes. What an operator needs inside itself is not seen. Tensors that were there before are
    counted by `add`. `within` sets the peak back to what lives, for the time of a block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(out)
        return out

    def add(self, tensors: Any) -> None:
        """Count the tensors among these, each storage once."""
        for each in tree_iter(tensors):
            if isinstance(each, torch.Tensor):
                self._add(each.untyped_storage())

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Measure the peak of a block; it is to be read when the block has ended."""
        self.peak = self.now
        with self:
            yield

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self.known:
            return
        size = storage.nbytes()
        self.known[storage] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._end, size).atexit = False

    def _end(self, size: int) -> None:
        self.now -= size
