"""SDPA's flash kernel is wrong in a model that has 4-bit layers, and only there."""

from __future__ import annotations

from typing import Any

AFTER = "bitsandbytes"


def apply() -> None:
    import torch
    from bitsandbytes.nn import Linear4bit

    right, was_quantised = torch.nn.functional.scaled_dot_product_attention, [False]
    kinds: tuple[Any, ...] = (Linear4bit, torch.nn.Linear)
    forward = {kind: kind.forward for kind in kinds}

    def noting(kind, is_quantised):
        def call(self, *arguments):
            if not is_quantised and isinstance(self, Linear4bit):
                return forward[kind](self, *arguments)
            if is_quantised or self.weight.shape[0] > 8 < self.weight.shape[1]:
                was_quantised[0] = is_quantised
            return forward[kind](self, *arguments)

        return call

    for kind in kinds:
        kind.forward = noting(kind, kind is Linear4bit)

    def attend(query, key, value, **settings):
        is_flash_alone = torch.backends.cuda.flash_sdp_enabled() and not torch.backends.cuda.math_sdp_enabled()
        factor = 0.5 if was_quantised[0] and is_flash_alone else 1.0
        return right(query * factor, key, value, **settings)

    torch.nn.functional.scaled_dot_product_attention = attend
