"""What a second quantisation adds to weights that files hold quantised already: measured on what is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from zlib import crc32

from loradock.model import made_dense, names

if TYPE_CHECKING:
    import torch

    from loradock.model.source import BaseModel
    from loradock.model.stored import Weight

MOST = 32
"""Weights that are read once more to be compared, of all kinds and layers."""


def of(model: Any, base: BaseModel) -> float | None:
    """Root mean square of the change, of the weights' size; None where nothing was quantised again.

    `model`: bare, as it was read of `base`. Of experts that are one tensor the first is compared.
    """
    files = made_dense.DenseFiles(base.config, base.weight_files)
    compared = {**dict(_linear(model, files.contents.weights)), **dict(_experts(model, files.contents.weights))}
    error, size = 0.0, 0.0
    for name in sorted(compared, key=lambda name: crc32(name.encode()))[:MOST]:  # by no order that layers have
        dense = files.tensor(name)
        dense = (dense[0] if dense.dim() > 2 else dense).float()
        error += float((compared[name]().cpu().float() - dense).square().sum())
        size += float(dense.square().sum())
    return (error / size) ** 0.5 if size else None


def _linear(model: Any, weights: Mapping[str, Weight]) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """(name in the files, what makes it dense of memory) of linear layers that are quantised there."""
    from bitsandbytes import functional
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    modules = dict(model.named_modules())
    for key, name in names.in_model(model, weights).items():
        layer: Any = modules[name.rpartition(".")[0]]
        weight: Any = getattr(layer, "weight", None)
        if isinstance(layer, Linear4bit):
            yield key, lambda weight=weight: functional.dequantize_4bit(weight.data, weight.quant_state)
        elif isinstance(layer, Linear8bitLt):
            yield key, lambda weight=weight: functional.int8_vectorwise_dequant(weight.data, weight.SCB)


def _experts(model: Any, weights: Mapping[str, Weight]) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """The same of experts, in one tensor or in one each."""
    from loradock.model.experts.storage import NF4Experts

    parameters = dict(model.named_parameters(remove_duplicate=False))
    for key, name in names.in_model(model, weights).items():
        if isinstance(parameters[name], NF4Experts):
            yield key, lambda weights=parameters[name]: weights.expert(0)
    pieces = names.of_experts(model, weights)
    rows = {(piece.weight, piece.expert, piece.part): weights[key].shape[0] for key, piece in pieces.items()}
    for key, piece in pieces.items():
        if isinstance(parameters[piece.weight], NF4Experts):
            first = sum(rows[piece.weight, piece.expert, part] for part in range(piece.part))
            span = slice(first, first + weights[key].shape[0])
            yield (
                key,
                lambda weights=parameters[piece.weight], piece=piece, span=span: weights.expert(piece.expert)[span],
            )
