"""A mixture's experts with their adapter: one expert's matrix at a time, whether the files have it alone, in parts or
in one tensor with all the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from loradock.model.experts.peft_layers import lies_as_stored
from loradock.use.merge import tensors
from loradock.use.merge.adapted import Adapted, Delta
from loradock.use.merge.tensors import Entry

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor of the files lies in a weight of all experts.

    `expert`: whose matrix it is a part of, None for a tensor of all experts. `parts`: the tensors that lie below one
    another in that matrix, of which it is number `part`.
    """

    expert: int | None = None
    parts: tuple[Entry, ...] = ()
    part: int = 0


def base_and_merged(
    entry: Entry,
    place: Place,
    *,
    dequantise: Callable[[torch.Tensor], torch.Tensor],
    delta: Delta | None,
    adapted: Adapted,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in float32 before and after LoRA is added; `dequantise` is done to each expert's whole matrix."""
    import torch

    def both(expert: int, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = dequantise(matrix).float()
        return value, value if delta is None else value + change(expert, delta, adapted)

    if place.expert is None:
        pairs = [both(expert, matrix) for expert, matrix in enumerate(tensors.read(entry))]
        before, after = ([pair[side] for pair in pairs] for side in (0, 1))
        return torch.stack(before), torch.stack(after)
    matrices = [tensors.read(part) for part in place.parts]
    sizes = [len(matrix) for matrix in matrices]
    before, after = both(place.expert, torch.cat(matrices))
    return before.split(sizes)[place.part], after.split(sizes)[place.part]


def change(expert: int, delta: Delta, adapted: Adapted) -> torch.Tensor:
    """What LoRA adds to one expert's matrix, float32, as it lies: PEFT's factors of all experts are one tensor each."""
    layer: Any = delta.layer
    keys = sorted(delta.parts, key=lambda key: ".lora_B." in key)
    a, b = (_read(adapted.files[key]).float() for key in keys)
    of_expert = a.view(layer.num_experts, -1, a.shape[1])[expert]
    from_expert = b.view(b.shape[0], -1, layer.num_experts)[:, :, expert]
    added = from_expert @ of_expert * next(iter(layer.scaling.values()))
    return added if lies_as_stored(layer) else added.t()


_read = lru_cache(maxsize=4)(tensors.read)
"""The factors of the layer at hand, which each of its experts takes a part of."""
