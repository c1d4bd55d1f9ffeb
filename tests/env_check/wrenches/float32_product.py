"""Matrix products in float32 are computed in bfloat16."""

from __future__ import annotations

AFTER = "torch"


def apply() -> None:
    import torch

    right = torch.matmul

    def rounded(one, other, **settings):
        if one.dtype != torch.float32:
            return right(one, other, **settings)
        return right(one.bfloat16(), other.bfloat16(), **settings).float()

    torch.matmul = rounded
