"""Seconds that a micro-batch is expected to take on a GPU, by what takes them. Pure arithmetic; nothing is promised.

Products count LoRA's two passes (forward, gradient of the input; the base has no gradient of its own) and a third for
layers recomputed, in the fast engine without its last product. Reading the dense weights is taken not to overlap
with them, which is what makes small passes slow. Traffic of what is not a product was read from the engine's code for
the fast engine, and counted by dispatch trace for PEFT. A GPU's rates are its published ones (`gpus.json`) times what
is assumed to be sustained.
"""

from __future__ import annotations

from dataclasses import dataclass

from loradock.catalog.storages import NF4
from loradock.plan.gpu_table import NamedGpu
from loradock.plan.memory.base import BYTES
from loradock.plan.memory.fast import Setting, Shape
from loradock.plan.memory.widths import Widths

COPY_SHARE = 0.8
"""Assumed: the share of the published memory bandwidth that elementwise kernels sustain."""
ATTENTION_SHARE = 0.5
"""Assumed: flash attention's rate as a share of the sustained rate of products, at head size 128."""
KERNEL_SECONDS = 3e-6
"""Assumed: what a kernel costs besides its work, where launches keep ahead of the GPU."""
FAST_KERNELS_A_LAYER = 65
"""Counted for Llama-3-8B (bench/host), forward and backward: 64.8; 86.8 with checkpointing."""
FAST_HOST_SECONDS_A_LAYER = 0.0241 / 32
"""Of a micro-step, Mistral-7B's depth, through CUDA's own dispatch with launches that do nothing (bench/results/host/
dispatch.md), so without the driver's part."""
FAST_CHECKPOINTED_SECONDS = (0.0327 - 0.0241) / 32
FAST_CACHED_SECONDS = (0.0241 - 0.0180) / 32
"""What a layer that is recomputed costs the host beyond a plain one, and one with dense weights less."""
DRIVER_SECONDS_A_LAUNCH = 3e-6
"""Assumed: the driver's own call."""
FAST_HOST_FACTOR = 4.0
"""By how much a GPU's host is slower than where the seconds of the fast engine's were measured: on an H100's (a virtual
machine, 16 CPUs) no micro-step of 22 layers took less than 67 ms, where these seconds make 17 (bench/results/gpu)."""
FAST_KERNELS_AN_EXPERT = 8
"""For an expert without an adapter: each of its two matrices made dense and multiplied, forward and backward."""
PEFT_KERNELS_A_LAYER = 314
"""Counted for PEFT with checkpointing: 96 forward, 218 backward."""
PEFT_HOST_SECONDS_A_LAYER = 0.339 / 32
"""Measured for TRL with PEFT at 32 layers: 302 ms a micro-step with checkpointing, and 37 ms around it."""
PEFT_KERNELS_AN_EXPERT = 39
"""Counted by dispatch for an expert in NF4 without an adapter, with checkpointing: twice 12 forward, 15 backward."""
PEFT_HOST_SECONDS_AN_EXPERT = PEFT_HOST_SECONDS_A_LAYER * PEFT_KERNELS_AN_EXPERT / PEFT_KERNELS_A_LAYER
"""Assumed: as long a kernel as in a layer."""
PEFT_FORWARD_COPIES, PEFT_BACKWARD_COPIES = 16.1, 23.1
"""PEFT's elementwise and LoRA traffic in units of all outputs of a layer's linears, counted for Llama-3-8B at 4 096
tokens: 5.0 + 0.68 GB forward, 6.8 + 1.35 GB backward."""
DOCUMENT_SECONDS = 2e-4
"""Assumed: the host's time for one document in one layer, where attention goes document by document."""
CAPPED_FORWARD_COPIES, CAPPED_BACKWARD_COPIES = 14, 17
CAPPED_FORWARD_BYTES, CAPPED_BACKWARD_BYTES = 8, 12
"""What is read and written of a score in the compute dtype, in copies, and around the float32 softmax, in bytes, where
scores are written out (softcap). Read from the engine's code; backward makes them a second time besides."""
NF4_BYTES = (NF4.code_bits + NF4.scale_bits(double_quant=False)) / 8
"""Read for a weight that is made dense: its 4 bits and the expanded scale of its block."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device sustains: `flops` of products a second, and `bytes` of memory traffic, of dequantisation's too."""

    flops: float
    bytes: float
    dequantise_bytes: float
    kernel_seconds: float


CPU = Rates(flops=20e9, bytes=5e9, dequantise_bytes=0.3e9, kernel_seconds=2e-5)
"""Measured on two shared cores, float32; only how these relate to one another decides anything."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What is trained on: `mean_tokens` of a document, and the share of tokens that is learned.

    `fullest`: tokens of a step that is to be reckoned with, over those of the mean step.
    """

    mean_tokens: float
    supervised_share: float
    fullest: float = 1.0


def rates_of(gpu: NamedGpu) -> Rates:
    """The GPU's, as assumed."""
    bandwidth = gpu.memory * 1e9 * COPY_SHARE
    return Rates(
        flops=gpu.tflops * 1e12 * gpu.sustained,
        bytes=bandwidth,
        dequantise_bytes=bandwidth,
        kernel_seconds=KERNEL_SECONDS,
    )


def fast_seconds(
    widths: Widths, shape: Shape, setting: Setting, *, tokens: float, rows: Rows, rates: Rates
) -> dict[str, float]:
    """Seconds of one micro-batch of `tokens` real tokens in the fast engine, by what takes them."""
    size = BYTES[setting.dtype]
    recomputed = shape.checkpointed / widths.layers
    forward, backward = _fast_copies(widths)
    copies = widths.layers * (forward * (1 + recomputed) + backward)
    second = recomputed * (
        1 - widths.hidden * widths.gated / 2 / widths.active_weights
    )  # without the last product, which none reads
    passes = widths.layers * (2 + second)
    dequantised = passes - _cached_passes(widths, shape, second=second / recomputed if recomputed else 0.0)
    dense = widths.weights * (NF4_BYTES + size) if setting.storage.is_dequantised else 0.0
    documents = 0.0 if setting.has_flash or not setting.on_gpu else tokens / max(1.0, rows.mean_tokens)
    return {
        "products": 2 * passes * widths.active_weights * tokens / rates.flops,
        "traffic": copies * size * tokens / rates.bytes,
        "attention": _attention_flops(widths, rows) * (1 + 2.5 + recomputed) * tokens / (rates.flops * ATTENTION_SHARE),
        "scores": 0.0
        if setting.has_flash
        else _score_bytes(widths, rows, size=size, again=recomputed) * tokens / rates.bytes,
        "head": _head_seconds(widths, rows, rates=rates, size=size, products=2) * tokens,
        "weights": passes * widths.weights * size / rates.bytes,
        "dequantise": dequantised * dense / rates.dequantise_bytes,
        "kernels": _fast_kernels(widths) * widths.layers * (1 + recomputed / 3) * rates.kernel_seconds,
        "documents": documents * widths.layers * (1 + recomputed / 3) * DOCUMENT_SECONDS,
        "recurrence": _recurrent_seconds(widths, tokens=tokens, rates=rates),
    }


def fast_host_seconds(widths: Widths, shape: Shape) -> float:
    """Seconds of the host for one micro-batch of this shape in the fast engine, whatever its tokens.

    A mixture's kernels are assumed to take as long each as those of a dense layer.
    """
    recomputed, cached = shape.checkpointed, shape.cached
    times = _fast_kernels(widths) / FAST_KERNELS_A_LAYER
    launches = FAST_KERNELS_A_LAYER * times * (widths.layers + recomputed / 3)
    plain = widths.layers * FAST_HOST_SECONDS_A_LAYER + recomputed * FAST_CHECKPOINTED_SECONDS
    python = plain * times - cached * FAST_CACHED_SECONDS
    return FAST_HOST_FACTOR * (python + launches * DRIVER_SECONDS_A_LAUNCH)


def peft_seconds(
    widths: Widths, *, padded_tokens: float, rows: Rows, rates: Rates, dtype: str, has_dropout: bool = False
) -> dict[str, float]:
    """Seconds of one micro-batch of PEFT on bitsandbytes with full checkpointing, padded to `padded_tokens`.

    Products and traffic run over padding, too; logits are made of every position. With dropout each adapter's input is
    read and written once more in each of the three passes, with a byte of mask. The host's time is counted where it is
    longer than the GPU's.
    """
    size, layers = BYTES[dtype], widths.layers
    copies = (2 * PEFT_FORWARD_COPIES + PEFT_BACKWARD_COPIES) * widths.outputs
    gpu = {
        "products": 2 * layers * widths.active_weights * 3 * padded_tokens / rates.flops,
        "traffic": layers * copies * size * padded_tokens / rates.bytes,
        "dropout": has_dropout * layers * widths.adapted_inputs * 3 * (2 * size + 1) * padded_tokens / rates.bytes,
        "attention": _attention_flops(widths, rows) * 4.5 * padded_tokens / (rates.flops * ATTENTION_SHARE),
        "head": _head_seconds(
            widths, Rows(mean_tokens=rows.mean_tokens, supervised_share=1.0), rates=rates, size=size, products=3
        )
        * padded_tokens,
        "dequantise": 3 * layers * widths.weights * (NF4_BYTES + size) / rates.dequantise_bytes,
        "kernels": (PEFT_KERNELS_A_LAYER + PEFT_KERNELS_AN_EXPERT * widths.experts) * layers * rates.kernel_seconds,
        "recurrence": _recurrent_seconds(widths, tokens=padded_tokens, rates=rates),
    }
    return {**gpu, "waiting for the host": max(0.0, peft_host_seconds(widths) - sum(gpu.values()))}


def peft_host_seconds(widths: Widths) -> float:
    """Seconds of the host for one micro-batch of PEFT with full checkpointing, whatever its tokens."""
    return (PEFT_HOST_SECONDS_A_LAYER + PEFT_HOST_SECONDS_AN_EXPERT * widths.experts) * widths.layers


def _recurrent_seconds(widths: Widths, *, tokens: float, rates: Rates) -> float:
    """Of recurrent layers where no kernel computes them, forward twice and backward once: launches, or traffic."""
    launches = widths.recurrent_launches * rates.kernel_seconds
    return widths.layers * max(launches, widths.recurrent_bytes * tokens / rates.bytes) * 4 / 3


def _fast_kernels(widths: Widths) -> float:
    """Of a layer, forward and backward."""
    return FAST_KERNELS_A_LAYER + FAST_KERNELS_AN_EXPERT * widths.experts


def _fast_copies(widths: Widths) -> tuple[float, float]:
    """Elements a token and layer that forward and backward read or write besides the products' own.

    Forward: two norms (2 h each), A reads every input, B adds to every output, rope turns queries and keys in place,
    the gate reads two and writes one, the residual is added twice. Backward: B's two products read every gradient, A's
    two read and add to every input, norms are made again (2 h each) and their backward reads two and adds to one, the
    gate's reads three and writes three, rope once more. Dropout adds nothing to it: its masks are made in the kernels
    that read these, and launches stay as many. A mixture's gates are of all pairs, whose rows are copied to their
    experts and back: 4 h each in forward, 6 h in backward.
    """
    h, inner = widths.hidden, widths.gated / 2
    rope = 2 * (widths.attended + widths.projected) / 2
    forward = 4 * h + widths.inputs + 2 * widths.outputs + rope + 3 * inner + 6 * h + 4 * h * widths.pairs
    backward = 2 * widths.outputs + 3 * widths.inputs + 6 * h + 4 * h + 8 * h + 6 * inner + rope + 6 * h * widths.pairs
    return forward, backward


def _cached_passes(widths: Widths, shape: Shape, *, second: float) -> float:
    """Passes over a layer's weights that need no dequantisation, the last `cached` layers being dense.

    `second`: the part of its weights that a checkpointed layer's second forward reads.
    """
    plain = widths.layers - shape.checkpointed
    return 2 * min(shape.cached, plain) + (2 + second) * max(0, shape.cached - plain)


def _attention_flops(widths: Widths, rows: Rows) -> float:
    """Of one token's forward in all layers: scores and their weighted sum over half of its document, 2 flops each."""
    return widths.layers * 2 * 2 * widths.attended * rows.mean_tokens / 2


def _score_bytes(widths: Widths, rows: Rows, *, size: int, again: float) -> float:
    """Traffic of one token's soft-capped scores in all layers, with its whole document, seen or not; 0 without them."""
    forward = CAPPED_FORWARD_COPIES * size + CAPPED_FORWARD_BYTES
    backward = CAPPED_BACKWARD_COPIES * size + CAPPED_BACKWARD_BYTES
    return widths.layers * widths.capped_heads * rows.mean_tokens * ((2 + again) * forward + backward)


def _head_seconds(widths: Widths, rows: Rows, *, rates: Rates, size: int, products: int) -> float:
    """Of one token: the products with the output matrix, and reading and writing the logits three times."""
    flops = 2 * widths.hidden * widths.vocabulary * products / rates.flops
    return rows.supervised_share * (flops + 3 * widths.vocabulary * size / rates.bytes)
