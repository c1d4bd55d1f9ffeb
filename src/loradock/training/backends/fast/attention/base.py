"""What an attention backend is: documents, the rule of attention, and a forward and a backward over flat tensors.

All documents of a micro-batch lie end to end along the first axis. A token sees tokens of its own document only: itself
and those before it, or all (`Documents.is_causal`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

Saved = tuple[torch.Tensor, ...]
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents:
    """Which of T tokens belong together.

    `bounds`: n + 1 rising token counts on the host; document i is the tokens bounds[i] .. bounds[i + 1], and the last
    bound is T: every token, padding too, has its document, or kernels would leave its row uninitialised.
    `cu_seqlens`: the same numbers, int32 [m + 1] on the device, m >= n; repeats of T at its end are empty documents,
    which keep its shape static. `longest`: an upper bound of a document's length, in tokens; a document longer than it
    would be computed in part only. `is_causal`: a token sees itself and those before it; else all of its document,
    which no sliding window may be shorter than. Raises ValueError for bounds that are none; reads nothing from the
    device.
    """

    bounds: tuple[int, ...]
    cu_seqlens: torch.Tensor
    longest: int
    is_causal: bool = True

    def __post_init__(self) -> None:
        spans = self.spans()
        if not spans or self.bounds[0] != 0 or list(self.bounds) != sorted(self.bounds):
            raise ValueError(f"bounds of documents start at 0 and rise, and these do not: {self.bounds}")
        length = self.longest_there
        if length > self.longest:
            raise ValueError(f"a document has {length} tokens and longest says {self.longest}")
        if self.cu_seqlens.dtype != torch.int32 or self.cu_seqlens.numel() < len(self.bounds):
            raise ValueError(
                f"cu_seqlens holds {self.cu_seqlens.numel()} numbers of {self.cu_seqlens.dtype},"
                f" and {len(self.bounds)} of torch.int32 are needed"
            )

    @property
    def longest_there(self) -> int:
        """The length of the longest document, in tokens."""
        return max(end - start for start, end in self.spans())

    def cut(self, chunk: int | None) -> Documents:
        """The same tokens where none sees beyond its chunk of so many, counted from its document's start."""
        if chunk is None or self.longest_there <= chunk:
            return self
        bounds = (0, *(min(at + chunk, end) for start, end in self.spans() for at in range(start, end, chunk)))
        on_device = torch.tensor(bounds, dtype=torch.int32).to(self.cu_seqlens.device)
        return replace(self, bounds=bounds, cu_seqlens=on_device, longest=chunk)

    def spans(self) -> list[tuple[int, int]]:
        """First token and end of each document that has tokens, in order."""
        return [(start, end) for start, end in itertools.pairwise(self.bounds) if start != end]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a backend has to serve. `device`: cpu or cuda; `capability` is the GPU's, None on a CPU."""

    device: str
    capability: tuple[int, int] | None
    dtype: torch.dtype
    head_dim: int
    softcap: float | None
    has_flash_attn: bool


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How scores become weights.

    `scale` multiplies q·k. With `window` w a token sees itself and the w - 1 before it, as transformers defines
    `sliding_window`; None is no limit. With `chunk` c it sees no token of another c of its document (Llama 4). With
    `softcap` c the scaled score s becomes c·tanh(s / c) before the softmax (Gemma 2, arXiv:2408.00118); None is no cap.
    `sinks` [H], frozen: of each query head the score of one more token that all see and whose value is zero (gpt-oss,
    as in arXiv:2309.17453); None is none. Not with a softcap.
    """

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None = field(default=None, compare=False)
    chunk: int | None = None


class Attention(Protocol):
    """A backend. Stateless: one object serves all layers.

    Shapes: q [T, H, D]; k and v [T, K, D] with H a multiple of K (query head h reads key head h // (H / K)); out and
    dout [T, H, D]. One dtype throughout, the last axis contiguous, other strides free. Gradients come back in that
    dtype, with the shapes of q, k and v.
    """

    @property
    def name(self) -> str:
        """The backend's name, one word."""
        ...

    @property
    def merit(self) -> str:
        """What it is good for, as the start of the sentence that tells why it was chosen."""
        ...

    @property
    def is_static(self) -> bool:
        """Whether kernels and launches depend on shapes and `longest` alone, so that a CUDA graph may replay them."""
        ...

    def obstacle(self, case: Case) -> str | None:
        """Why it cannot serve the case, or None."""
        ...

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, documents: Documents, rule: Rule
    ) -> tuple[torch.Tensor, Saved]:
        """Return out, and what backward needs besides q, k, v and out."""
        ...

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        saved: Saved,
        documents: Documents,
        rule: Rule,
    ) -> Gradients:
        """Return dq, dk, dv for the gradient of out."""
        ...
