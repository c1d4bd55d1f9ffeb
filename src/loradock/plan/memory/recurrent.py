"""How many tokens a recurrent layer computes at once, where transformers computes it in torch: whole chunks of them.

What is between its linear layers keeps many times its input (docs/hybrids.md), for the tokens that fill a chunk up as
well: a document of 24 tokens costs Granite 4's state space 256. So the fast engine takes smaller chunks for short
documents, and computes no more documents together than `TOGETHER_TOKENS` hold. Pure arithmetic, for plan and engine.
"""

from __future__ import annotations

LEAST_CHUNK = 64
TOGETHER_TOKENS = 4096
"""Of documents that are computed together, the tokens that fill up included; one document may have more. At so many
memory traffic takes longer than the launches do: 9 MiB a token of Qwen3.5-4B, beside 550 launches."""


def chunk_of(length: int, *, chunk: int) -> int:
    """The tokens of a chunk for documents of this length: a power of two where the model's own `chunk` is too wide."""
    return min(chunk, max(LEAST_CHUNK, 1 << (length - 1).bit_length()))


def in_chunks(length: int, *, chunk: int) -> int:
    """The tokens that are computed for a document of this length."""
    size = chunk_of(length, chunk=chunk)
    return -(-length // size) * size


def together(tokens: int, *, longest: int, mean: float, chunk: int, filled_up: float) -> float:
    """Of a pass of this many tokens, those that are computed at once, the tokens that fill up included.

    `longest` and `mean` are of its documents; `filled_up`: how much one is lengthened to the longest of its group.
    """
    length = max(1, min(tokens, round(mean)))
    computed = tokens / length * in_chunks(length, chunk=chunk) * filled_up
    return min(computed, max(TOGETHER_TOKENS, in_chunks(min(tokens, longest), chunk=chunk)))
