"""Bytes that the fast engine needs on its device, by component, for any shape of its micro-batches. Pure arithmetic.

Read from the engine's own code (`engine/fast/layer.py` says what a layer keeps) and held against the live bytes of real
micro-steps; see docs/memory.md. For a token of hidden size h, with a = all query heads, p = queries, keys and values,
I = the MLP's inner size and r = the ranks of all adapters of a layer, in elements of the compute dtype:

    a plain layer keeps      2 h + p + a + 2 I + r, and in float32 two norms' rstd and a log-sum-exp a head
    a checkpointed one       h, its input; the one that is computed again is whole for that time
    in flight, beyond that   the gradient h, and the widest moment of one layer's forward or backward, or the head's

The last layers are the plain ones, so the peak is at the head or in the last layer's backward, where all the others
still hold what they keep. Evaluation keeps nothing but has two layers at hand at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from loradock.facts import ModelFacts
from loradock.memory.base import BYTES, RUNTIME_BYTES, weight_bytes
from loradock.memory.widths import Widths, widths

FLOAT = 4
SCALE_BYTES_A_WEIGHT = 4 / 64
"""The expanded float32 scale of each NF4 block of 64 weights; see `engine.fast.weights`."""
ADAPTER_BYTES = 8
"""float32 value and gradient of an adapter's weight."""
OPTIMIZER_BYTES = 8
"""Two float32 moments of AdamW."""
BATCH_BYTES_A_TOKEN = 40
"""ids 8, positions 4, and for a supervised position rows 8, slots 8, targets 8, weights 4."""
LOGIT_CHUNK_BYTES = 256 << 20
LEAST_LOGIT_ROWS = 128
HEAD_SIZE = 64
"""The smallest attention head that is common: the log-sum-exp is counted by it, at most 0.3 % of what a layer keeps."""
FLASH_ROWS_A_DOCUMENT = 128
"""Rows by which FlashAttention-2's backward workspace grows with each document; see `engine.fast.attention`."""
PLAIN_COPIES = 3
"""Float32 copies as wide as the MLP that the gate's backward makes where it is plain torch."""
PER_DOCUMENT_COPIES = 12
"""Copies of a document's queries where attention is recomputed document by document. An assumption."""
FRAGMENTATION = 0.08
"""Of what comes and goes with a micro-batch. An assumption, to be measured on a card."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is decided before the shape of a pass: how weights are held, what computes, and how long documents are.

    `has_flash`: FlashAttention-2's kernels compute attention. `longest_tokens` and `mean_tokens` are of a document.
    """

    quantization: str
    double_quant: bool
    dtype: str
    rank: int
    on_gpu: bool
    has_flash: bool
    longest_tokens: int
    mean_tokens: float


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a pass: `tokens` at most, the first `checkpointed` layers, the last `cached` layers dense."""

    tokens: int
    checkpointed: int
    cached: int = 0


class FastMemory:
    """Bytes of one model under one setting, for any shape."""

    def __init__(self, model: ModelFacts, setting: Setting) -> None:
        self.model = model
        self.setting = setting
        self.widths: Widths = widths(model, rank=setting.rank)
        self.bytes = BYTES[setting.dtype]
        self.fixed = self._fixed()

    def parts(self, shape: Shape) -> dict[str, int]:
        """Bytes by component, with `total` last."""
        moving = {
            "activations": self.activations(shape),
            "in flight": self.in_flight(shape),
            "batch": shape.tokens * BATCH_BYTES_A_TOKEN,
        }
        parts = {**self.fixed, "dense weights": self.dense_layer * shape.cached, **moving}
        parts["fragmentation"] = int(sum(moving.values()) * FRAGMENTATION)
        return {**parts, "total": sum(parts.values())}

    def total(self, shape: Shape) -> int:
        """Bytes in all."""
        return self.parts(shape)["total"]

    @property
    def dense_layer(self) -> int:
        """Bytes of the dense weights of one layer."""
        return int(self.widths.weights * self.bytes) if self.is_nf4 else 0

    @property
    def is_nf4(self) -> bool:
        """Whether matrices are made dense for each product."""
        return self.setting.quantization == "nf4"

    def kept_by_layer(self, tokens: int) -> int:
        """Bytes that a plain layer keeps from forward to backward."""
        wide = self.widths
        elements = 2 * wide.hidden + wide.projected + wide.attended + 2 * wide.inner + wide.ranks
        if wide.has_out_norms:
            elements += 2 * wide.hidden
        return int(tokens * (elements * self.bytes + FLOAT * (2 + wide.attended / HEAD_SIZE)))

    def activations(self, shape: Shape) -> int:
        """Bytes kept at the peak: by all layers, and by the one that is computed again where the last one has to be."""
        inputs = shape.tokens * self.widths.hidden * self.bytes
        layer = self.kept_by_layer(shape.tokens)
        plain = self.widths.layers - shape.checkpointed
        return plain * layer + shape.checkpointed * inputs + (0 if plain else layer)

    def in_flight(self, shape: Shape) -> int:
        """Bytes of the widest moment beyond what is kept, in training or in evaluation."""
        dense = self.widths.widest * self.bytes if self.is_nf4 and shape.cached < self.widths.layers else 0
        moments = [self._mlp_backward(shape.tokens, dense), self._attention_backward(shape.tokens, dense)]
        if shape.checkpointed == self.widths.layers:
            moments.append(self._forward(shape.tokens, dense))
        evaluation = 2 * self.kept_by_layer(shape.tokens) + self._forward(shape.tokens, dense)
        return max(*moments, self._head(shape.tokens), evaluation - self.activations(shape))

    def _fixed(self) -> dict[str, int]:
        setting, model = self.setting, self.model
        adapters = model.adapter_parameters(setting.rank)
        is_expanded = self.is_nf4 and setting.double_quant
        copies = self.bytes * (1 if self.bytes == FLOAT else 2)
        return {
            "base weights": weight_bytes(
                model, quantization=setting.quantization, double_quant=setting.double_quant, dtype=setting.dtype
            ),
            "expanded scales": int(model.linear_parameters * SCALE_BYTES_A_WEIGHT) if is_expanded else 0,
            "adapters and gradients": adapters * (ADAPTER_BYTES + copies),
            "optimiser state": adapters * OPTIMIZER_BYTES,
            "runtime": RUNTIME_BYTES,
        }

    def _forward(self, tokens: int, dense: int) -> int:
        """The MLP half, at its last product: its normed input, the gate's product, the layer's output."""
        return int(tokens * self.bytes * (2 * self.widths.hidden + self.widths.inner)) + dense

    def _mlp_backward(self, tokens: int, dense: int) -> int:
        """The layer's gradient, and that of the gate's product."""
        gate = tokens * self.bytes * (self.widths.hidden + self.widths.inner)
        if self.setting.on_gpu:
            return gate + dense
        own = 0 if self.bytes == FLOAT else PLAIN_COPIES
        return gate + max(dense, tokens * FLOAT * self.widths.inner * (PLAIN_COPIES + own))

    def _attention_backward(self, tokens: int, dense: int) -> int:
        """The layer's gradient, attention's, those of queries, keys and values; the kernel's own or the input's."""
        wide = self.widths
        held = tokens * self.bytes * (wide.hidden + wide.attended + wide.projected)
        joined = wide.projected if wide.has_fused_projections else 0
        after = tokens * self.bytes * (2 * wide.hidden + joined) + dense
        return int(held + max(after, self._attention_workspace(tokens)))

    def _attention_workspace(self, tokens: int) -> float:
        wide, setting = self.widths, self.setting
        if not setting.has_flash:
            return min(tokens, setting.longest_tokens) * self.bytes * wide.attended * PER_DOCUMENT_COPIES
        documents = tokens / max(1.0, setting.mean_tokens)
        sums = (tokens + FLASH_ROWS_A_DOCUMENT * documents) * FLOAT * wide.attended * (1 + 1 / HEAD_SIZE)
        return sums + tokens * self.bytes * 2 * wide.attended * wide.has_grouped_heads

    def _head(self, tokens: int) -> int:
        """Head and loss where every position is supervised: hidden states and gradients, and a chunk of logits."""
        chunk_rows = max(LEAST_LOGIT_ROWS, LOGIT_CHUNK_BYTES // (self.widths.vocabulary * self.bytes))
        logits = min(tokens, chunk_rows) * self.widths.vocabulary * self.bytes
        return tokens * self.widths.hidden * self.bytes * 6 + logits
