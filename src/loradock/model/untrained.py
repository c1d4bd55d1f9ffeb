"""Control tokens that rows hold and the base never trained: their rows of the embedding are zero, or equal.

Base models reserve such tokens (Llama 3's `<|eot_id|>`), and tokens that are added to a model begin so. LoRA on the
linear layers changes no embedding: the model would read and write these tokens without telling them apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from loradock.model import headers

if TYPE_CHECKING:
    from torch import Tensor

    from loradock.model.source import BaseModel

NEAR_ZERO = 1e-3
"""Of the median length of a row; rows of trained tokens differ by less than a factor of ten."""
SAMPLED_ROWS = 512


def note(base: BaseModel, tokens: dict[int, str], *, saved: Collection[str]) -> str | None:
    """The warning about those of `tokens` (id -> text) that no row of the base's files tells apart; None without.

    `saved`: lora.modules_to_save, the modules that are trained whole. Only the rows that are compared are read.
    """
    texts: dict[str, list[int]] = {}
    for module, weight in _matrices(base):
        if module not in saved and (ids_untrained := untrained(weight, ids=sorted(tokens))):
            texts[module] = ids_untrained
    if not texts:
        return None
    ids = sorted({number for ids_untrained in texts.values() for number in ids_untrained})
    modules = ", ".join([*saved, *texts])
    return (
        f"warning: the base never trained {', '.join(tokens[number] for number in ids)}, which rows hold: what "
        f"{' and '.join(texts)} has for each is zero, or equal, and adapters do not change it. --set "
        f"'lora.modules_to_save=[{modules}]' trains these whole, --set data.template=alpaca needs no control tokens"
    )


def untrained(weight: Any, *, ids: list[int]) -> list[int]:
    """Which of `ids` have a row that is zero, beside the others, or that of another of them.

    `weight`: [vocabulary, hidden], as safetensors' `get_slice` gives it.
    """
    import torch

    vocabulary = weight.get_shape()[0]
    step = max(1, vocabulary // SAMPLED_ROWS)
    ids = [number for number in ids if number < vocabulary]

    def rows(numbers: Collection[int]) -> Tensor:
        return torch.stack([weight[number : number + 1][0].float() for number in numbers])

    if not ids:
        return []
    usual = rows(range(0, vocabulary, step)).norm(dim=1).median()
    rows_of_ids = rows(ids)
    _, group, sizes = rows_of_ids.unique(dim=0, return_inverse=True, return_counts=True)
    is_untrained = (rows_of_ids.norm(dim=1) <= NEAR_ZERO * usual) | (sizes[group] > 1)
    return [number for number, is_bad in zip(ids, is_untrained.tolist(), strict=True) if is_bad]


def _matrices(base: BaseModel) -> Iterator[tuple[str, Any]]:
    """The embedding and the head, by module, as far as the files hold them under a known name."""
    from safetensors import safe_open

    for file in base.weight_files:
        if file.suffix != ".safetensors":  # a pickle cannot be read in part
            continue
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118  (it is no mapping)
                if name.endswith((*headers.EMBEDDINGS, *headers.HEADS)):
                    yield name.removesuffix(".weight").split(".")[-1], content.get_slice(name)
