"""The kernels of the fast engine: in plain torch (`plain`) and in Triton (`fused`), one interface (`base`).

Liger's kernels are not used: its RMSNorm also makes the gradient of the weight, which is frozen here, and cannot add to
the residual's gradient; its RoPE copies to other layouts and wants a table row for each token; its cross entropy waits
for the device (`.item()`), and one weight for each row would cost another pass over the logits.
"""

from __future__ import annotations

import torch

from loradock.errors import ConfigError
from loradock.training.backends.fast.kernels import plain
from loradock.training.backends.fast.kernels.base import Activation, Dropout, Kernels

__all__ = ["Activation", "Dropout", "Kernels", "kernels_for"]


def kernels_for(device: torch.device, asked: str) -> Kernels:
    """The kernels for tensors on `device`; auto is Triton on CUDA and plain torch elsewhere.

    Raises ConfigError where Triton is asked for on a device that it does not drive (TRITON_INTERPRET=1 lets it).
    """
    if asked == "torch" or (asked == "auto" and device.type != "cuda"):
        return plain
    from triton import knobs

    from loradock.training.backends.fast.kernels import fused

    if device.type != "cuda" and not knobs.runtime.interpret:
        raise ConfigError(f"Triton kernels cannot run on {device.type}", hint="--set model.kernels=auto")
    return fused
