"""The fused AdamW kernel steps twice as far."""

from __future__ import annotations

AFTER = "torch.optim"


def apply() -> None:
    import torch

    right = torch._fused_adamw_

    def twice_as_far(*arguments, lr, **settings):
        return right(*arguments, lr=2 * lr, **settings)

    torch._fused_adamw_ = twice_as_far
