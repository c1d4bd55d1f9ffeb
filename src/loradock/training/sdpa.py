"""Which kernels torch's scaled_dot_product_attention may choose among on a GPU."""

from __future__ import annotations

import torch

SWITCHES = {
    "flash": torch.backends.cuda.enable_flash_sdp,
    "memory-efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "math": torch.backends.cuda.enable_math_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
}


def allow(kernel: str) -> None:
    """Leave the one that is named, for this process; auto: all. torch raises where the one left cannot serve."""
    for name, switch in SWITCHES.items():
        switch(kernel in ("auto", name))
