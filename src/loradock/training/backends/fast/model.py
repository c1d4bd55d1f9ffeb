"""The whole model over one flat batch: embedding, layers, head, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from loradock.training.backends.fast import families
from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.attention.base import Attention
from loradock.training.backends.fast.attention.per_document import PerDocument
from loradock.training.backends.fast.batch import FlatBatch, PooledBatch, Tokens
from loradock.training.backends.fast.carried import Carried, TokenInputs
from loradock.training.backends.fast.families.parts import MixtureParts, ModelParts
from loradock.training.backends.fast.head import Head
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.layer import Layer, LayerKept, first_adapter
from loradock.training.backends.fast.linear import adapter_parameters
from loradock.training.backends.fast.mlp.experts import expert_parameters
from loradock.training.backends.fast.mlp.mixture import unwrapped
from loradock.training.backends.fast.mlp.router import Balance
from loradock.training.backends.fast.pooler import Pooler, ScalarHead, head_of
from loradock.training.backends.fast.token_rows import TokenRows, once
from loradock.training.backends.fast.weights import DenseRoom

Held = TypeVar("Held", bound=Tokens)


class FastModel:
    """Computes losses and adapter gradients of a PeftModel whose weights it shares.

    `checkpointed` of the layers keep their input only and are computed again in backward. `positions` is the longest
    document, in tokens; `attention_of` is what attends by heads of a size. Raises Unfit for a model no family serves.
    """

    def __init__(
        self,
        model: Any,
        *,
        positions: int,
        dtype: torch.dtype,
        attention_of: Callable[[int], Attention],
        kernels: Kernels,
        checkpointed: int = 0,
    ) -> None:
        parts = families.read(model, positions=positions)
        self.dtype = dtype
        self.embedding, self.embedding_scale = parts.embedding, parts.embedding_scale
        self.output_matrix = parts.head
        scalar = head_of(model)
        trained = [*trained_by(parts), *([] if scalar is None else [scalar])]
        self.adapters = FlatAdapters(trained, dtype=dtype)
        self.embedding_rows, head_rows = (
            TokenRows(rows, self.adapters) if rows else None for rows in (parts.embedding_rows, parts.head_rows)
        )
        self.initial_rows = [(each.parameter, each.initial) for each in once(parts.embedding_rows, parts.head_rows)]
        self.room, self.balance = DenseRoom(), Balance()
        has_experts = [isinstance(each.mlp, MixtureParts) for each in parts.layers]
        self.has_experts = any(has_experts)
        self.layers = [
            Layer(
                each,
                adapters=self.adapters,
                room=self.room,
                balance=self.balance,
                tables=parts.tables,
                attention_of=attention_of,
                kernels=kernels,
                index=index,
                mixture=sum(has_experts[:index]),
                is_lowest=index == 0 and not self.embedding_rows,
            )
            for index, each in enumerate(parts.layers)
        ]
        self.token_inputs: TokenInputs | None = None
        if parts.token_inputs is not None:
            first, room = first_adapter(len(parts.layers), 0), self.room
            self.token_inputs = TokenInputs(parts.token_inputs, self.adapters, room, kernels=kernels, first=first)
        self.head = Head(
            parts.head.to(dtype),
            parts.norm,
            softcap=parts.softcap,
            scale=parts.logit_scale,
            kernels=kernels,
            rows=head_rows,
        )
        scalar_head = None if scalar is None else ScalarHead(scalar, self.adapters)
        self.pooler = Pooler(parts.norm, kernels=kernels, head=scalar_head)
        self.checkpointed = checkpointed
        self.adapters.refresh()

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Inside, the same weights and adapters are computed with in float32, and no layer keeps more than its input.

        Attention is that of each document by itself, which has every dtype. NF4 values are not rounded.
        """
        before = self.dtype, self.checkpointed, [layer.attend_by(PerDocument()) for layer in self.layers]
        self._compute_in(torch.float32, len(self.layers))
        try:
            yield
        finally:
            dtype, checkpointed, attention = before
            for layer, backend in zip(self.layers, attention, strict=True):
                layer.attend_by(backend)
            self._compute_in(dtype, checkpointed)

    def _compute_in(self, dtype: torch.dtype, checkpointed: int) -> None:
        self.dtype, self.checkpointed = dtype, checkpointed
        self.adapters.compute_in(dtype)
        self.adapters.refresh()
        self.head.weight = self.output_matrix.to(dtype)
        self.room.release()
        if self.token_inputs is not None:
            self.token_inputs.projection.bind(self.adapters)
        for layer in self.layers:
            for frozen in layer.frozen():
                frozen.bind(self.adapters)

    @property
    def is_static(self) -> bool:
        """Whether its launches follow from the shape of a batch alone, so that a graph may replay them."""
        return all(layer.is_static for layer in self.layers)

    def keep_dense(self, layers: int) -> None:
        """Keep the frozen matrices of the last so many layers dense, and those of no other."""
        self.room.release()
        first = len(self.layers) - layers
        for index, layer in enumerate(self.layers):
            for frozen in layer.frozen():
                frozen.keep(self.dtype if index >= first else None)

    def loss_and_gradients(self, batch: FlatBatch, *, scale: float) -> torch.Tensor:
        """scale x the summed negative log-likelihood of the supervised tokens, in nats; float32 scalar on the device.

        A mixture adds its balancing loss, times the number of these tokens. The gradients of the same are added to
        `adapters.gradient`.
        """
        with self.balance.over(batch):
            batch = self._begun(batch)
            x, kept = self._forward(batch)
            loss, gradient = self.head.loss_and_gradient(x, batch, scale=scale)
            del x
            balancing = self.balance.loss(scale * batch.weights.sum())
            self._backward(gradient, kept, batch)
        return loss if balancing is None else loss + balancing

    def loss(self, batch: FlatBatch) -> torch.Tensor:
        """The summed negative log-likelihood of the supervised tokens, in nats."""
        x = self._states(batch)
        return self.head.loss(x, batch)

    def vectors(self, batch: PooledBatch) -> torch.Tensor:
        """Documents' vectors, float32 [documents, hidden], or scores [documents, 1]; nothing is kept for backward."""
        x = self._states(batch)
        return self.pooler.forward(x, batch)

    def vectors_kept(self, batch: PooledBatch) -> tuple[torch.Tensor, Callable[[torch.Tensor], None]]:
        """The same, and what adds the adapters' gradients, from those of the vectors, to `adapters.gradient`, once."""
        batch = self._begun(batch)
        x, kept = self._forward(batch)

        def backward(gradient: torch.Tensor) -> None:
            self._backward(self.pooler.backward(gradient, x, batch), kept, batch)

        return self.pooler.forward(x, batch), backward

    def scores(self, batch: FlatBatch) -> torch.Tensor:
        """Documents' log-probabilities, float32 [documents], in nats; nothing is kept for backward."""
        x = self._states(batch)
        return self.head.scores(x, batch)

    def scores_kept(self, batch: FlatBatch) -> tuple[torch.Tensor, Callable[[torch.Tensor], None]]:
        """The same, and what adds the adapters' gradients, from those of the sums, to `adapters.gradient`, once."""
        batch = self._begun(batch)
        x, kept = self._forward(batch)

        def backward(gradient: torch.Tensor) -> None:
            weighted = replace(batch, weights=-gradient[batch.owners] * batch.weights)
            self._backward(self.head.loss_and_gradient(x, weighted, scale=1.0)[1], kept, batch)

        return self.head.scores(x, batch), backward

    def _begun(self, batch: Held) -> Held:
        """The batch for one pass forward and backward, with what layers read beside the states."""
        if self.token_inputs is None:
            return replace(batch, carried=Carried())
        return replace(batch, carried=self.token_inputs.forward(self._embed(batch), batch.ids, keys=batch.keys))

    def _states(self, batch: Tokens) -> torch.Tensor:
        """Those after the last layer; what a layer keeps goes at once."""
        batch = self._begun(batch)
        x = self._embed(batch)
        for layer in self.layers:
            x = layer.forward(x, batch)[0]
        return x

    def _forward(self, batch: Tokens) -> tuple[torch.Tensor, list[LayerKept | torch.Tensor]]:
        """The states after the last layer, and what backward needs of each."""
        x = self._embed(batch)
        kept: list[LayerKept | torch.Tensor] = []
        for index, layer in enumerate(self.layers):
            before = x
            x, all_kept = layer.forward(x, batch)
            kept.append(before if index < self.checkpointed else all_kept)
            del all_kept
        return x, kept

    def _backward(self, gradient: torch.Tensor, kept: list[LayerKept | torch.Tensor], batch: Tokens) -> None:
        """From the gradient of the last states, whose storage it takes; what was kept goes as it is used."""
        for layer in reversed(self.layers):
            held = kept.pop()
            if isinstance(held, torch.Tensor):
                held = layer.recompute(held, batch)
            gradient = layer.backward(gradient, held, batch)
            del held
        if self.embedding_rows:
            self.embedding_rows.look_up_backward(gradient, batch.ids, scale=self.embedding_scale)
        if self.token_inputs is not None:
            self.token_inputs.backward(batch.carried, lambda: self._embed(batch), keys=batch.keys)
        self.adapters.accumulate()

    def _embed(self, batch: Tokens) -> torch.Tensor:
        x = torch.nn.functional.embedding(batch.ids, self.embedding).to(self.dtype)
        if self.embedding_rows:
            x = self.embedding_rows.look_up(x, batch.ids)
        return x * self.embedding_scale if self.embedding_scale != 1.0 else x


def trained_by(parts: ModelParts) -> list[torch.nn.Parameter]:
    """The adapters' weights in the order that stacks what shares an input, and rows of new tokens."""
    of_layers = [p for layer in parts.layers for group in layer.groups() for p in adapter_parameters(group)]
    wrappers = (unwrapped(each.mlp.experts)[1] for each in parts.layers if isinstance(each.mlp, MixtureParts))
    of_experts = [p for of_layer in wrappers for wrapper in of_layer.values() for p in expert_parameters(wrapper)]
    of_inputs = [] if parts.token_inputs is None else adapter_parameters((parts.token_inputs.projection,))
    return [
        *of_layers,
        *of_inputs,
        *of_experts,
        *(rows.parameter for rows in once(parts.embedding_rows, parts.head_rows)),
    ]
