"""What the masks of dropout follow from: a random number for each token of a step."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from loradock.data.collate import MicroBatch

KEY_STRIDE = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, odd: what splitmix64 counts by."""


def token_keys(micro_batch: MicroBatch, *, slots: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 [slots]: evenly spread, by the place of a document in its step, the pass, and the position in it.

    They depend neither on the micro-batch nor on the process that computes a document. What fills up has 0.
    """
    keys = np.zeros(slots, dtype=np.uint64)
    lengths = micro_batch.lengths.astype(np.int64)
    documents = spread(micro_batch.places.astype(np.uint64) * KEY_STRIDE + zlib.crc32(micro_batch.purpose.encode()))
    positions = np.arange(micro_batch.tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    keys[: micro_batch.tokens] = spread(np.repeat(documents, lengths) + positions.astype(np.uint64) * KEY_STRIDE)
    return keys.view(np.int64)


def spread(numbers: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """splitmix64's output function (Steele, Lea and Flood 2014): one to one, near numbers come to lie far apart."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
