"""Keep bitsandbytes 0.50 from repacking 4-bit weights on AVX512-BF16 processors.

At the first forward without gradients it would repack them in place for an op that has no backward, and stay on it:
training after an evaluation is then silently wrong (the first layer's LoRA gradient norm fell from 0.0127 to 0.0034).
That bitsandbytes finds no such op when it is imported is therefore no trouble, and not shown.
"""

from __future__ import annotations

import logging
from typing import Any

LOGGER = "bitsandbytes.backends.cpu.ops"
UNUSED = "Failed to load CPU gemm_4bit_forward"


def apply(model: Any) -> int:
    """Switch the repacking off on every 4-bit linear; returns how many layers were touched."""
    from bitsandbytes.nn import Linear4bit

    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False
    return len(layers)


def quiet() -> None:
    """Before bitsandbytes is imported: say nothing of the op that is not used."""
    logging.getLogger(LOGGER).addFilter(is_told)


def is_told(record: logging.LogRecord) -> bool:
    """False for the one line."""
    return not str(record.msg).startswith(UNUSED)
