"""Output head and cross entropy on the supervised positions alone, the gradient made in the same pass, in chunks.

The logits of a chunk exist once and are overwritten by their gradient, so the head needs two products of matrices
instead of three, and its memory does not grow with the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.families.parts import Norm
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.token_rows import TokenRows

CHUNK_BYTES = 256 << 20
LEAST_ROWS = 128


class Head:
    """The final norm and the output matrix [vocabulary, hidden], both frozen; `softcap` bounds the logits (Gemma 2).

    Logits are multiplied with `scale` (Granite), by way of what the matrix reads. `rows` are trained, in the place of
    those that the matrix has of the same tokens.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        norm: Norm,
        *,
        softcap: float | None,
        scale: float = 1.0,
        kernels: Kernels,
        rows: TokenRows | None = None,
    ) -> None:
        self.weight = weight
        self.rows = rows
        self.norm = norm
        self.softcap = softcap
        self.scale = scale
        self.kernels = kernels
        self.chunk_rows = max(LEAST_ROWS, CHUNK_BYTES // (weight.shape[0] * weight.element_size()))

    def loss_and_gradient(
        self, x: torch.Tensor, batch: FlatBatch, *, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(scale x summed negative log-likelihood in nats, its gradient to x [T, hidden]), both of the same pass."""
        chosen = x.index_select(0, batch.rows)
        normed, rstd = self._normed(chosen)
        loss = torch.zeros((), dtype=torch.float32, device=x.device)
        weights = batch.weights * scale
        gradient = torch.empty_like(normed)
        for part in self._chunks(len(chosen)):
            logits = self._logits(normed[part])
            losses = self.kernels.cross_entropy_(logits, batch.targets[part], weights[part], softcap=self.softcap)
            through_rows = self.rows.take_gradient(logits, normed[part]) if self.rows else None
            torch.mm(logits, self.weight, out=gradient[part])
            if through_rows is not None:
                gradient[part] += through_rows
            loss += losses.sum()
            del logits  # before the next chunk's are made
        norm, gradient = self.norm, self._scaled(gradient)
        gradient = self.kernels.rms_norm_backward(gradient, chosen, rstd, norm.weight, offset=norm.offset)
        dx = torch.zeros(x.shape[0] + 1, x.shape[1], dtype=x.dtype, device=x.device)
        dx.index_copy_(0, batch.slots, gradient)
        if batch.repeats.numel():
            rows = batch.rows.index_select(0, batch.repeats)
            dx.index_add_(0, rows, gradient.index_select(0, batch.repeats))
        return loss, dx[:-1]

    def loss(self, x: torch.Tensor, batch: FlatBatch) -> torch.Tensor:
        """Summed negative log-likelihood of the supervised tokens, in nats."""
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        for _, losses in self._losses(x, batch):
            total += losses.sum()
        return total

    def scores(self, x: torch.Tensor, batch: FlatBatch) -> torch.Tensor:
        """The log-probability of each document's supervised tokens, float32 [documents], added up in float64."""
        sums = torch.zeros(len(batch.documents.bounds) - 1, dtype=torch.float64, device=x.device)
        owners = batch.owners
        for part, losses in self._losses(x, batch):
            sums.index_add_(0, owners[part], losses.double(), alpha=-1)
        return sums.float()

    def _losses(self, x: torch.Tensor, batch: FlatBatch) -> Iterator[tuple[slice, torch.Tensor]]:
        """Chunk by chunk the weighted negative log-likelihoods of the supervised tokens, float32."""
        normed, _ = self._normed(x.index_select(0, batch.rows))
        for part in self._chunks(len(normed)):
            logits = self._logits(normed[part])
            yield (
                part,
                self.kernels.cross_entropy_(
                    logits, batch.targets[part], batch.weights[part], softcap=self.softcap, with_gradient=False
                ),
            )
            del logits

    def _logits(self, normed: torch.Tensor) -> torch.Tensor:
        logits = torch.mm(normed, self.weight.t())
        if self.rows:
            self.rows.put_logits(logits, normed)
        return logits

    def _normed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed, rstd = self.kernels.rms_norm(x, self.norm.weight, self.norm.epsilon, offset=self.norm.offset)
        return self._scaled(normed), rstd

    def _scaled(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self.scale == 1.0 else rows.mul_(self.scale)

    def _chunks(self, rows: int) -> list[slice]:
        return [slice(first, min(first + self.chunk_rows, rows)) for first in range(0, rows, self.chunk_rows)]
