"""A copy of a run's state in host memory, to write from while training changes the state itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch


class Snapshot:
    """Takes copies of tensors into buffers of host memory, which stay for the next time: page-locked for a GPU's.

    The one before must not be read any more when the next is taken.
    """

    def __init__(self) -> None:
        self.buffers: list[torch.Tensor] = []

    def missing_bytes(self, content: Any) -> int:
        """Bytes of host memory that are not there yet for a copy of `content`."""
        needed = sum(_taken_bytes(storage.nbytes(), is_pinned=storage.is_cuda) for storage in storages(content))
        return max(0, needed - self.taken_bytes)

    @property
    def taken_bytes(self) -> int:
        """Bytes of host memory in the buffers."""
        return sum(_taken_bytes(buffer.nbytes, is_pinned=buffer.is_pinned()) for buffer in self.buffers)

    def take(self, content: Any) -> Any:
        """`content` (dictionaries, lists and tuples) with each tensor copied, bit by bit; other values as they are.

        Tensors that share memory share that of the copy. Returns once the copy is whole. Raises RuntimeError, or
        MemoryError, where there is no memory for it.
        """
        copies: dict[int, torch.Tensor] = {}
        on_gpu = False
        for number, storage in enumerate(storages(content)):
            source = _bytes_of(storage)
            copies[storage.data_ptr()] = self._buffer(number, source).copy_(source, non_blocking=True)
            on_gpu |= source.is_cuda
        del self.buffers[len(copies) :]
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return _replaced(content, copies)

    def _buffer(self, number: int, source: torch.Tensor) -> torch.Tensor:
        """The buffer of this number, of the source's size: the one before where it fits."""
        if number == len(self.buffers):
            self.buffers.append(torch.empty(0, dtype=torch.uint8))
        if self.buffers[number].nbytes != source.nbytes:
            self.buffers[number] = torch.empty(source.nbytes, dtype=torch.uint8, pin_memory=source.is_cuda)
        return self.buffers[number]


def _taken_bytes(size_bytes: int, *, is_pinned: bool) -> int:
    """Of memory, for a buffer: torch takes page-locked memory in powers of two."""
    return 1 << (size_bytes - 1).bit_length() if is_pinned and size_bytes else size_bytes


def tensors(content: Any) -> Iterator[torch.Tensor]:
    """Every tensor in dictionaries, lists and tuples, in order."""
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, Mapping):
        for value in cast("Mapping[Any, Any]", content).values():
            yield from tensors(value)
    elif isinstance(content, (list, tuple)):
        for value in cast("list[Any]", content):
            yield from tensors(value)


def storages(content: Any) -> list[torch.UntypedStorage]:
    """The memory that the tensors lie in, each piece once, in order."""
    by_place = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors(content)}
    return list(by_place.values())


def on_host(content: Any) -> Any:
    """`content` with each tensor in host memory: itself where it is, else a copy."""
    if all(storage.device.type == "cpu" for storage in storages(content)):
        return content
    copies = {storage.data_ptr(): _bytes_of(storage).cpu() for storage in storages(content)}
    return _replaced(content, copies)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _replaced(content: Any, copies: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(content, torch.Tensor):
        copy = copies[content.untyped_storage().data_ptr()].untyped_storage()
        where = (content.storage_offset(), content.size(), content.stride())
        return torch.empty(0, dtype=content.dtype).set_(copy, *where)
    if isinstance(content, Mapping):
        return {key: _replaced(value, copies) for key, value in cast("Mapping[Any, Any]", content).items()}
    if isinstance(content, (list, tuple)):
        values = cast("list[Any]", content)
        return type(values)(_replaced(value, copies) for value in values)
    return content
