"""Bytes that the fast engine needs on its device, by component, for any shape of its micro-batches. Pure arithmetic.

Read from the engine's own code (`backends/fast/layer.py` says what a layer keeps) and compared with the live bytes of
real micro-steps; see docs/memory.md. For a token of hidden size h, with a = all query heads, p = queries, keys and
values, I = the MLP's inner size and r = the ranks of all adapters of a layer, in elements of the compute dtype:

    a plain layer keeps      2 h + p + a + 2 I + r, and in float32 two norms' rstd and a log-sum-exp a head
                             (2 I and r of each of its experts in a mixture, and the router's probabilities)
    a checkpointed one       h, its input; the one that is recomputed is whole for that time
    a recurrent one          2 h + p + 2 I + r: what is between its linear layers is made again, for one layer
    in flight, beyond that   the gradient h, and the widest moment of one layer's forward or backward, or the head's

The last layers are the plain ones, so the peak is at the head or in the last layer's backward, where all the others
still hold what they keep. Evaluation keeps nothing, but has two layers at hand at a time, or one and the head. With
new tokens the self-check before the first step has PEFT's copies of the embedding, and little else.
"""

from __future__ import annotations

from dataclasses import dataclass

from loradock.catalog import optimizers, storages
from loradock.facts import ModelFacts
from loradock.plan.memory import attention, recurrent
from loradock.plan.memory.base import BYTES, RUNTIME_BYTES, row_bytes, weight_bytes
from loradock.plan.memory.widths import Widths, widest_attention, widths

FLOAT = 4
ADAPTER_BYTES = 8
"""float32 value and gradient of an adapter's weight."""
BATCH_BYTES_A_TOKEN = 40
"""ids 8, positions 4, and for a supervised position rows 8, slots 8, targets 8, weights 4."""
LOGIT_CHUNK_BYTES = 256 << 20
LEAST_LOGIT_ROWS = 128
HEAD_END_HIDDEN = 6
"""Tensors of hidden states at the end of the head: two more gradients, through the norm and to all positions."""
PLAIN_COPIES = 3
"""Float32 copies as wide as the MLP that the gate's backward makes where it is plain torch."""
PLAIN_LOGITS = 1 << 20
"""Logits of which plain torch's loss makes float32 copies at a time on a CPU."""
FILLED_UP = 1.15
"""How much documents that a recurrent layer computes together are lengthened to the longest of them. An assumption; at
most 1.33 (`backends.fast.mixers.recurrent`)."""
BESIDE_KEPT = 1.25
"""What a recurrent layer's documents take in backward over what they keep: gradients of some of it, and what lies
between tensors whose size differs from group to group. Measured (bench.memory --hybrids)."""

ALLOCATOR_FLOOR_BYTES = 160 << 20
FRAGMENTATION = 0.015
"""What torch's allocator reserves on a GPU beyond its tensors' bytes, and the share of what comes and goes with a
micro-batch: cuBLAS' workspace (32 MiB), segments of 2 MiB for tensors below 1 MiB, pages of 20 MiB for the others, and
what lies between them. Measured with expandable segments at 96 shapes of four models (bench.memory --allocator)."""
EXPERTS_FLOOR_BYTES = 200 << 20
EXPERTS_FRAGMENTATION = 0.15
EXPERTS_MOVING = 0.01
"""The same of a mixture, besides: between experts' tensors and adapters, of what is in flight, where tensors of all
pairs come and go beside what recomputed layers keep, and of all that comes and goes. Measured at 20 shapes of five
mixtures (bench.memory --mixtures)."""
CPU_FRAGMENTATION = 0.08
"""Of what comes and goes with a micro-batch, on a CPU. An assumption."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is decided before the shape of a pass: how weights are held, what computes, and how long documents are.

    `has_flash`: FlashAttention-2's kernels compute attention, else each document is computed by itself.
    `longest_tokens` and `mean_tokens` are of a document. `runtime_bytes`: what the process has beside its tensors.
    """

    quantization: str
    double_quant: bool
    dtype: str
    rank: int
    on_gpu: bool
    has_flash: bool
    longest_tokens: int
    mean_tokens: float
    runtime_bytes: int = RUNTIME_BYTES

    @property
    def storage(self) -> storages.Storage:
        """How the base's weights are held."""
        return storages.of(self.quantization)


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
        self.widest = widest_attention(model, self.widths)
        self.bytes = BYTES[setting.dtype]
        self.fixed = self._fixed()

    def parts(self, shape: Shape) -> dict[str, int]:
        """Bytes by component, with `total` last."""
        moving = {
            "activations": self.activations(shape),
            "in flight": self.in_flight(shape),
            "batch": shape.tokens * BATCH_BYTES_A_TOKEN,
        }
        parts_held = {"dense weights": self.dense_layer * shape.cached, "dequantised layer": self.dense_room(shape)}
        fragmentation = self.fragmentation(sum(moving.values()), in_flight=moving["in flight"])
        parts = {**self.fixed, **parts_held, **moving, "fragmentation": fragmentation}
        return {**parts, "total": sum(parts.values())}

    def total(self, shape: Shape) -> int:
        """Bytes in all."""
        return self.parts(shape)["total"]

    @property
    def has_wide_heads(self) -> bool:
        """Whether a layer has heads that flash kernels do not take."""
        return 0 < attention.LARGEST_FLASH_HEAD * self.model.heads < self.widest.attended

    @property
    def dense_layer(self) -> int:
        """Bytes of the dense weights of one layer."""
        return int(self.widths.weights * self.bytes) if self.setting.storage.is_dequantised else 0

    def dense_room(self, shape: Shape) -> int:
        """Bytes of the room on a GPU in which one matrix after the other is made dense; see `backends.fast.weights`."""
        is_used = self.setting.storage.is_dequantised and self.setting.on_gpu and shape.cached < self.widths.layers
        return self.widths.widest * self.bytes * is_used

    def fragmentation(self, moving: int, *, in_flight: int) -> int:
        """What the allocator holds beyond its tensors, while this many bytes come and go with a micro-batch."""
        if not self.setting.on_gpu:
            return int(moving * CPU_FRAGMENTATION)
        of_experts = EXPERTS_FLOOR_BYTES + int(in_flight * EXPERTS_FRAGMENTATION + moving * EXPERTS_MOVING)
        return ALLOCATOR_FLOOR_BYTES + int(moving * FRAGMENTATION) + of_experts * bool(self.model.experts)

    def kept_by_layer(self, tokens: int, *, wide: Widths | None = None) -> int:
        """Bytes that a plain layer keeps from forward to backward: one of these widths, else the mean of all."""
        wide = wide or self.widths
        elements = 2 * wide.hidden + wide.projected + wide.values + wide.gated + wide.ranks
        if wide.has_out_norms:  # and after experts that stand beside an MLP, and after that
            elements += 2 * wide.hidden * (2 if wide.experts else 1)
        if wide.token_input:
            elements += 2 * wide.hidden + wide.token_input
        return int(
            tokens * (elements * self.bytes + FLOAT * (2 + wide.attended / attention.HEAD_SIZE) + wide.router_bytes)
        )

    def activations(self, shape: Shape) -> int:
        """Bytes that all layers keep when forward has ended."""
        plain = self.widths.layers - shape.checkpointed
        # What all layers read of a token, before its norm, too: of checkpointed ones as well.
        inputs = 2 * self.widths.token_input * self.widths.layers
        # The first layers are checkpointed; the MLPs of the last ones may be wider than the mean.
        gated = self.widths.gated_by_layer[shape.checkpointed :]
        wider = sum(gated) - self.widths.gated * len(gated)
        beside = int((inputs + wider) * shape.tokens * self.bytes)
        return plain * self.kept_by_layer(shape.tokens) + shape.checkpointed * self._hidden(shape.tokens) + beside

    def in_flight(self, shape: Shape) -> int:
        """Bytes of the widest moment beyond what is kept, in training or in evaluation."""
        tokens, layers = shape.tokens, self.widths.layers
        layer = self.kept_by_layer(tokens)
        has_dense = self.setting.storage.is_dequantised and not self.setting.on_gpu and shape.cached < layers
        moments = [self._in_layer(shape, has_dense=has_dense and not shape.cached)]
        if has_dense and shape.cached:  # below the cached layers, which have given back what they kept
            plain = min(shape.cached, layers - shape.checkpointed)
            given_back = plain * layer + (shape.cached - plain) * self._hidden(tokens)
            moments.append(self._in_layer(shape, has_dense=True) - given_back)
        evaluation = max(layer + self._forward(tokens, has_dense=has_dense), self._head(tokens, hidden=3))
        before_training = row_bytes(self.model, dtype=self.setting.dtype)
        moments += [evaluation - self.activations(shape), before_training - self.activations(shape)]
        return max(*moments, self._head(tokens, hidden=4), HEAD_END_HIDDEN * self._hidden(tokens))

    def _fixed(self) -> dict[str, int]:
        setting, model = self.setting, self.model
        adapters = model.adapter_parameters(setting.rank)
        # The scales in float32, which the engine keeps beside quantised ones: `backends.fast.weights`.
        scale_bits = setting.storage.scale_bits(double_quant=False) * setting.double_quant
        copies = self.bytes * (1 if self.bytes == FLOAT else 2)
        return {
            "base weights": weight_bytes(
                model, quantization=setting.quantization, double_quant=setting.double_quant, dtype=setting.dtype
            ),
            "expanded scales": int(model.reached_parameters * scale_bits / 8),
            "adapters and gradients": adapters * (ADAPTER_BYTES + copies),
            "optimiser state": adapters * optimizers.DEFAULT.device_bytes,
            "runtime": setting.runtime_bytes,
        }

    def _in_layer(self, shape: Shape, *, has_dense: bool) -> int:
        """The widest moment of one layer's forward or backward."""
        tokens = shape.tokens
        forward = self._forward(tokens, has_dense=has_dense)
        backward = max(
            self._mlp_backward(tokens, has_dense=has_dense),
            self._attention_backward(tokens, has_dense=has_dense),
            self._recurrent_backward(tokens),
        )
        if shape.checkpointed == self.widths.layers:  # a layer is whole in its forward, and when it is recomputed
            return self.kept_by_layer(tokens, wide=self.widest) + max(forward - self._hidden(tokens), backward)
        return max(forward, backward)

    def _forward(self, tokens: int, *, has_dense: bool) -> int:
        """The MLP half, with its normed input: a projection, or the last product beside what it reads and gives."""
        wide = self.widths
        if wide.pairs:
            # Of each pair what down reads, its output, and that once more in the order of tokens.
            moment = tokens * (2 * wide.pairs * wide.hidden + wide.gated / 2) + wide.widest * has_dense
            return self._hidden(tokens) + int(moment * self.bytes)
        last = (tokens * (wide.hidden + wide.inner) + wide.hidden * wide.inner * has_dense) * self.bytes
        return self._hidden(tokens) + max(wide.widest * self.bytes * has_dense, last)

    def _mlp_backward(self, tokens: int, *, has_dense: bool) -> int:
        """The layer's gradient, and that of the gate's product; then that of the half's input."""
        wide = self.widths
        if wide.pairs:
            return self._mixture_backward(tokens, has_dense=has_dense)
        product = tokens * wide.inner * self.bytes
        copies = 0 if self.setting.on_gpu else PLAIN_COPIES * (1 if self.bytes == FLOAT else 2)
        down = wide.hidden * wide.inner * self.bytes * has_dense
        first = product + max(down, tokens * wide.inner * FLOAT * copies)
        return self._layer_gradients(tokens) + max(first, self._hidden(tokens) + wide.widest * self.bytes * has_dense)

    def _mixture_backward(self, tokens: int, *, has_dense: bool) -> int:
        """The same for each pair of token and expert: the gate's product beside its gradient, then the input's."""
        wide, dense = self.widths, self.widths.widest * self.bytes * has_dense
        pairs = tokens * wide.pairs
        product = pairs * wide.gated / wide.pairs / 2 * self.bytes
        copies = 0 if self.setting.on_gpu or self.bytes == FLOAT else 2 * product * FLOAT / self.bytes
        outputs = pairs * wide.hidden * self.bytes
        moments = (outputs + product + dense, 2 * product + copies, 2 * outputs + self._hidden(tokens) + dense)
        return int(self._layer_gradients(tokens) + max(moments))

    def _layer_gradients(self, tokens: int) -> int:
        """The gradient to a layer's output, and that to what goes into the norm after a half."""
        return self._hidden(tokens) * (1 + self.widths.has_out_norms)

    def _attention_backward(self, tokens: int, *, has_dense: bool) -> int:
        """Gradients of the layer, attention, queries, keys and values, and the normed; the kernel's or the input's."""
        wide = self.widest
        inside = tokens * (wide.attended + wide.projected + wide.normed) * self.bytes
        recomputed = self._layer_gradients(tokens) + inside
        matrix = wide.hidden * wide.projected * has_dense
        gradients = (tokens * (2 * wide.hidden + wide.projected) + matrix) * self.bytes
        return int(recomputed + max(gradients, self._workspace(tokens)))

    def _recurrent_backward(self, tokens: int) -> int:
        """The layer's gradient, what goes into and out of what is made again, with gradients, and what that keeps."""
        counted, setting = self.model.recurrence, self.setting
        if not counted:
            return 0
        around = tokens * (2 * self.widths.hidden + 4 * self.widths.projected) * self.bytes
        longest, mean, chunk = setting.longest_tokens, setting.mean_tokens, counted.chunk_tokens
        computed = recurrent.together(tokens, longest=longest, mean=mean, chunk=chunk, filled_up=FILLED_UP)
        return int(around + computed * BESIDE_KEPT * counted.kept(setting.dtype))

    def _workspace(self, tokens: int) -> float:
        """Attention's own, in backward."""
        setting = self.setting
        of_one = attention.document(self.widest, min(tokens, setting.longest_tokens), size=self.bytes)
        if not setting.has_flash:
            return of_one
        documents = tokens / max(1.0, setting.mean_tokens)
        of_all = attention.flash(self.widest, tokens, documents=documents, size=self.bytes)
        return max(of_all, of_one * self.has_wide_heads)

    def _head(self, tokens: int, *, hidden: int) -> int:
        """In the loop over chunks of logits: one of them, and this many tensors of hidden states.

        Every position is taken to be supervised. The tensors are the last hidden states, the chosen ones, normed, and
        in training their gradient.
        """
        copies = 0 if self.setting.on_gpu else 1 if self.bytes == FLOAT else 2
        logits = min(tokens * self.widths.vocabulary, PLAIN_LOGITS) * FLOAT * copies
        return hidden * self._hidden(tokens) + self._logits(tokens) + logits

    def _logits(self, tokens: int) -> int:
        row = self.widths.vocabulary * self.bytes
        return min(tokens, max(LEAST_LOGIT_ROWS, LOGIT_CHUNK_BYTES // row)) * row

    def _hidden(self, tokens: int) -> int:
        return tokens * self.widths.hidden * self.bytes
