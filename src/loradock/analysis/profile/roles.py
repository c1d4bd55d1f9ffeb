"""What an operator or kernel is for, by the range that it was launched in and by its name. To add a rule: a line.

Kernel names are those of cuBLAS, CUTLASS, FlashAttention, bitsandbytes, NCCL, torch and our own Triton kernels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from loradock.analysis.profile import ranges

GEMM, ATTENTION, DEQUANTISE, ELEMENTWISE = "products", "attention", "dequantising", "norm, rope, activation"
OPTIMIZER, COPY, HEAD, COMMUNICATION, OTHER = "optimiser", "copies", "loss and head", "communication", "other"
DATA, EVALUATION, SAVING, LOGGING = "data", "evaluation", "saving", "logging"

ROLES = (
    GEMM, ATTENTION, HEAD, DEQUANTISE, ELEMENTWISE, OPTIMIZER, COPY, COMMUNICATION, DATA, EVALUATION, SAVING, LOGGING,
    OTHER,
)  # fmt: skip
COMPUTING = (GEMM, ATTENTION, HEAD)
"""What arithmetic bounds; the others are bound by memory traffic."""

BY_RANGE = {
    ranges.EVALUATION: EVALUATION,
    ranges.SAVING: SAVING,
    ranges.LOGGING: LOGGING,
    ranges.DATA: DATA,
    ranges.OPTIMIZER: OPTIMIZER,
    ranges.TO_DEVICE: COPY,
    ranges.HEAD: HEAD,
    ranges.ATTENTION: ATTENTION,
    ranges.DEQUANTISE: DEQUANTISE,
}
BY_NAME = tuple(
    (role, re.compile(pattern, re.IGNORECASE))
    for role, pattern in (
        (COMMUNICATION, r"nccl|all_?reduce|all_?gather|c10d"),
        (DEQUANTISE, r"dequant|quantize|gemm_4bit|gemv_4bit"),
        (HEAD, r"cross_entropy|log_softmax|nll_loss"),
        (ATTENTION, r"flash|fmha|attention|mem_eff|\bb?addbmm|::bmm|baddbmm|softmax"),
        (OPTIMIZER, r"adam|multi_tensor|_foreach|lamb\b|sgd"),
        (GEMM, r"gemm|gemv|cutlass|xmma|nvjet|wgmma|::(mm|addmm|linear|matmul|mv|addmv)_?$|splitk"),
        (COPY, r"memcpy|memset|copy|::(to|_to_copy|clone|contiguous|cat|zero_|fill_|zeros|pin_memory)$|CatArray|fill"),
        (ELEMENTWISE, r"rms_norm|layer_norm|norm|rope|gate|silu|gelu|rsqrt|elementwise|reduce|pointwise|triton_"),
        (ELEMENTWISE, r"::(mul|add|sub|div|pow|mean|sum|neg|sigmoid|exp|where|masked_fill|index_select|embedding)_?$"),
    )
)


def role_of(name: str, active: Sequence[str]) -> str:
    """The role; `active` are the ranges around it, the outermost first. What lies outside the passes goes first."""
    for label in active:
        if label in ranges.OUTSIDE:
            return BY_RANGE[label]
    for label in reversed(active):
        if label in BY_RANGE:
            return BY_RANGE[label]
    return next((role for role, pattern in BY_NAME if pattern.search(name)), OTHER)
