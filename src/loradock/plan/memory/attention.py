"""What attention's backward takes beside the gradients, by the fast engine: bytes, of layers as wide as `Widths`."""

from __future__ import annotations

from loradock.plan.memory.widths import Widths

FLOAT = 4
HEAD_SIZE = 64
"""The smallest attention head that is common: the log-sum-exp is counted by it, at most 0.3 % of what a layer keeps."""
FLASH_ROWS_A_DOCUMENT = 128
"""Rows by which FlashAttention-2's backward workspace grows with each document; see `backends.fast.attention`."""
LARGEST_FLASH_HEAD = 256
"""Wider heads attend document by document; see `backends.fast.attention.flash_limits`."""
PER_DOCUMENT_COPIES = 12
"""Copies of a document's queries where attention is recomputed document by document. An assumption."""
CAPPED_COPIES = 5
"""The same beside scores that are written out (softcap): measured, 2 to 5."""
CAPPED_SCORE_BYTES = 12
"""A score's own bytes and these are alive at once in backward, where they are written out: measured with torch's plain
operators, 14 in half precision and 16 in float32; a GPU's softmax needs 2 less in half precision."""
CAPPED_MASK_BYTES = 1
"""Of one mask for all heads."""


def flash(wide: Widths, tokens: int, *, documents: float, size: int) -> float:
    """FlashAttention-2's kernels over so many documents in all; `size`: bytes of an element."""
    sums = (tokens + FLASH_ROWS_A_DOCUMENT * documents) * FLOAT * wide.attended * (1 + 1 / HEAD_SIZE)
    return sums + tokens * size * 2 * wide.attended * wide.has_grouped_heads


def document(wide: Widths, tokens: int, *, size: int) -> float:
    """One document of this many tokens recomputed: copies of it and, with softcap, the scores of all heads."""
    copy = tokens * size * wide.attended
    if not wide.capped_heads:
        return copy * PER_DOCUMENT_COPIES
    score = wide.capped_heads * (size + CAPPED_SCORE_BYTES) + CAPPED_MASK_BYTES
    return copy * CAPPED_COPIES + tokens**2 * score
