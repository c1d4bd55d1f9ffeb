"""The gradient through a 4-bit layer comes out half as large."""

from __future__ import annotations

from typing import Any

AFTER = "bitsandbytes"


def apply() -> None:
    from bitsandbytes.autograd._functions import MatMul4Bit

    function: Any = MatMul4Bit
    right = function.backward

    def halved(ctx, gradient):
        first, *others = right(ctx, gradient)
        return (first / 2, *others)

    function.backward = staticmethod(halved)
