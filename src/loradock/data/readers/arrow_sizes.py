"""What the values of an Arrow array take once they are spelt out, reckoned from its offsets and indices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from loradock.data.readers.base import Unreadable

VALUE_BYTES = 8
"""Of each value of a fixed size, at least what a list holds to point to it."""
Sizes = np.ndarray[Any, np.dtype[np.int64]] | int
"""Bytes of each value, or of every value."""


def hides_bytes(type: Any) -> bool:
    """Whether values of a type can take more than their arrays do."""
    import pyarrow as pa

    is_known = pa.types.is_struct(type) or pa.types.is_list(type) or pa.types.is_large_list(type)
    if is_known or pa.types.is_map(type) or pa.types.is_fixed_size_list(type):
        inner = [type.field(number).type for number in range(type.num_fields)]
        return any(pa.types.is_null(each) or hides_bytes(each) for each in inner)
    return is_view(type) or pa.types.is_dictionary(type) or bool(type.num_fields)


def value_bytes(array: Any) -> Sizes:
    """What each value of an array takes, spelt out; numbers are not told apart."""
    import pyarrow as pa
    import pyarrow.compute as pc

    type = array.type
    if isinstance(array, pa.ExtensionArray):
        return value_bytes(array.storage)
    if pa.types.is_dictionary(type):
        return looked_up(array)
    if pa.types.is_struct(type):
        return sum_of(map(value_bytes, array.flatten())) + VALUE_BYTES
    if pa.types.is_map(type):
        return of_lists(array, [array.keys, array.items])
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return of_lists(array, [array.values])
    if pa.types.is_fixed_size_list(type):
        inner = value_bytes(array.values)
        return VALUE_BYTES + type.list_size * (inner if isinstance(inner, int) else int(inner.max(initial=0)))
    if is_view(type):
        return of_views(array)
    if is_bytes(type):
        return (
            pc.call_function("binary_length", [array]).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            + VALUE_BYTES
        )
    if type.num_fields:
        raise Unreadable(f"values of type {type} are not read")
    return VALUE_BYTES


def of_views(array: Any) -> Sizes:
    """Bytes of values that point into shared buffers: each has 16 bytes, of which the first 4 are its length."""
    held = array.buffers()[1]
    first, last = array.offset, array.offset + len(array)
    lengths = np.frombuffer(held, dtype=np.int32, count=4 * last).reshape(-1, 4)[first:, 0] if last else np.zeros(0)
    is_there = array.is_valid().to_numpy(zero_copy_only=False)
    return np.where(is_there, lengths, 0).astype(np.int64) + VALUE_BYTES


def looked_up(array: Any) -> Sizes:
    """Bytes of values of a dictionary."""
    inner = value_bytes(array.dictionary)
    if isinstance(inner, int) or not inner.size:
        return VALUE_BYTES
    return inner[array.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)]


def of_lists(array: Any, values: list[Any]) -> Sizes:
    """Bytes of lists, from those of the values that they hold: of a slice, not of the whole that it is cut from."""
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    inner = sum_of(value_bytes(value.slice(first, last - first)) for value in values)
    if isinstance(inner, int):
        return np.diff(offsets) * inner + VALUE_BYTES
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(inner)])
    return np.diff(ends[offsets - first]) + VALUE_BYTES


def sum_of(sizes: Iterable[Sizes]) -> Sizes:
    """Of values side by side."""
    total: Sizes = 0
    for each in sizes:
        total = total + each
    return total


def is_bytes(type: Any) -> bool:
    """Whether values have a length of their own."""
    import pyarrow as pa

    is_kind = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(each(type) for each in is_kind)


def is_view(type: Any) -> bool:
    """Whether values point into buffers that they may share."""
    import pyarrow as pa

    return pa.types.is_string_view(type) or pa.types.is_binary_view(type)
