"""The elementwise kernels in Triton: one pass over memory each, float32 inside; what they do is in `base`."""

from __future__ import annotations

from loradock.training.backends.fast.kernels.cross_entropy import cross_entropy_
from loradock.training.backends.fast.kernels.dropout import lora_down, lora_down_backward_a, lora_down_backward_x_
from loradock.training.backends.fast.kernels.gate import clamped_gate, clamped_gate_backward_, gate, gate_backward_
from loradock.training.backends.fast.kernels.rms_norm import rms_norm, rms_norm_backward
from loradock.training.backends.fast.kernels.rope import rope_

__all__ = [
    "NAME", "clamped_gate", "clamped_gate_backward_", "cross_entropy_", "gate", "gate_backward_", "lora_down",
    "lora_down_backward_a", "lora_down_backward_x_", "rms_norm", "rms_norm_backward", "rope_",
]  # fmt: skip

NAME: str = "triton"
