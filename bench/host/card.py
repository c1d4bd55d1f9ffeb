"""A card that is not there: tensors without content that say they are on one, so that code takes its path for cards.

What would ask the card itself is answered here. Two answers leave out what a real card would do: transformers' search
for rows packed behind one another (four small kernels and a wait a micro-batch) is taken to find none, and torch's
attention is taken to choose its flash kernel, as it does on cards from sm80 on for causal attention without a mask.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode

from bench.host.backward import backward


@contextlib.contextmanager
def fake_card() -> Iterator[None]:
    """Tensors made within have no content, and "cuda" is a device for them."""
    with contextlib.ExitStack() as stack:
        for name, answer in {
            "torch.cuda.current_device": lambda: 0,
            "torch.cuda.is_bf16_supported": lambda *_: True,
            "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
            "torch.Tensor.backward": backward,
            "loradock.training.backends.fast.kernels.launch.launch": lambda *_, **__: None,
            "torch.nn.functional.scaled_dot_product_attention": flash,
            "transformers.masking_utils.find_packed_sequence_indices": lambda _: None,
        }.items():
            stack.enter_context(mock.patch(name, answer))
        stack.enter_context(FakeTensorMode())
        yield


def flash(q: Any, k: Any, v: Any, *, scale: float, is_causal: bool, attn_mask: Any, **_: Any) -> torch.Tensor:
    """Attention of q [B, H, T, D] to k and v [B, K, T, D] by torch's flash kernel; causal, without a mask."""
    if attn_mask is not None or not is_causal:
        raise ValueError("the flash kernel is chosen for causal attention without a mask")
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, scale=scale)[0]
