"""Let transformers quantise Falcon: it takes layers whose class is torch.nn.Linear itself, and Falcon's is a subclass.

FalconLinear rounds between product and bias, as Falcon was trained in 16 bit; without a bias, as in the published
7B, 40B and 180B, the two compute the same.
"""

from __future__ import annotations

from typing import Any


def apply(config: Any) -> None:
    """Before a Falcon is built: have it built of plain linear layers."""
    import torch

    if config.model_type == "falcon":
        from transformers.models.falcon import modeling_falcon

        modeling_falcon.FalconLinear = torch.nn.Linear  # pyright: ignore[reportAttributeAccessIssue]
