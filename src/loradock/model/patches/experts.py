"""Let transformers 5 quantise and compute a mixture's fused experts in 4 bit; without it they stay in 16 bit, unseen.

Its bitsandbytes quantiser takes linear layers alone, and its ways of computing experts index 16-bit tensors.
"""

from __future__ import annotations

from typing import Any


def build(config: Any) -> None:
    """Before a base is built: its experts become NF4 as they are read, where linear layers do."""
    from loradock.model.experts import loading

    loading.install(config)


def apply(model: Any) -> int:
    """Compute experts by `model.experts.forward` where they are in NF4 or cut; returns in how many layers they are."""
    from loradock.model.experts import forward, layout, llama4, peft_layers
    from loradock.model.experts.storage import NF4Experts

    llama4.put_into(model)
    if any(
        isinstance(each.parameter, NF4Experts) or hasattr(each.parameter, layout.PART)
        for each in layout.matrices(model)
    ):
        peft_layers.install()
        return forward.install(model)
    return 0
