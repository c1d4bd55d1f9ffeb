"""NF4 as published, in float64: the code book, and what a weight is quantised to. Uses nothing of bitsandbytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loradock.catalog.storages import NF4_SCALES

if TYPE_CHECKING:
    import torch

BLOCK = NF4_SCALES.block
# Dettmers, Pagnoni, Holtzman, Zettlemoyer: QLoRA (2023), appendix E.
CODE_BOOK = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
MARGIN = 0.01


def blocks(weights: torch.Tensor) -> torch.Tensor:
    """The weights [rows, columns] in float64 as [blocks, 64], in their order in memory, zeros after the last."""
    import torch

    flat = weights.detach().cpu().double().reshape(-1)
    return torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).reshape(-1, BLOCK)


def absmax(weights: torch.Tensor) -> torch.Tensor:
    """The scale of each block [blocks, 1]: its largest magnitude."""
    return blocks(weights).abs().amax(dim=1, keepdim=True)


def codes(weights: torch.Tensor) -> torch.Tensor:
    """The value of the code book that is nearest to each weight over its block's scale, [blocks, 64]."""
    import torch

    book = torch.tensor(CODE_BOOK, dtype=torch.float64)
    middles = (book[1:] + book[:-1]) / 2
    return book[torch.bucketize(blocks(weights) / absmax(weights).clamp(min=1e-30), middles)]


def rebuilt(weights: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
    """The weights after NF4, float64, in their shape; `scales` [blocks, 1] are used in the place of the exact ones."""
    values = codes(weights) * (absmax(weights) if scales is None else scales)
    return values.reshape(-1)[: weights.numel()].reshape(weights.shape)


def clear_of_ties(weights: torch.Tensor) -> torch.Tensor:
    """Weights of which none lies near the middle between two code values, so that their codes are beyond doubt."""
    import torch

    book = torch.tensor(CODE_BOOK, dtype=torch.float64)
    middles = (book[1:] + book[:-1]) / 2
    scaled = blocks(weights) / absmax(weights).clamp(min=1e-30)
    is_near = (scaled.unsqueeze(-1) - middles).abs().amin(dim=-1) < MARGIN
    cleared = torch.where(is_near, codes(weights), scaled) * absmax(weights)
    return cleared.reshape(-1)[: weights.numel()].reshape(weights.shape).to(weights)
