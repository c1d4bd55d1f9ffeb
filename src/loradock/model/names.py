"""What the files of a base call the weights of its model, by transformers' own rules for loading it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A tensor of the files that is part of one expert's matrix in a weight [experts, rows, columns] of the model.

    `part`: which of those that lie one below the other in the matrix (gate before up).
    """

    weight: str
    expert: int
    part: int


def in_model(model: Any, keys: Iterable[str]) -> dict[str, str]:
    """{name in the files: name in the model}, of the tensors that are one weight of the model as they lie there.

    Left out are those that the model has no use for, and those that loading fuses, splits or turns.
    """
    return {key: name for key, name, converter, _ in _renamed(model, keys) if converter is None}


def of_experts(model: Any, keys: Iterable[str]) -> dict[str, Piece]:
    """{name in the files: piece}, of the tensors that loading stacks to a weight of all experts of a layer.

    Loading numbers the experts of a layer in the order of their names, and lays parts below one another in the order of
    its rule.
    """
    pieces: dict[str, Piece] = {}
    counts: dict[tuple[str, int], int] = {}
    for key, name, converter, pattern in _renamed(model, keys):
        if converter is not None and _stacks_experts(converter):
            part = converter.source_patterns.index(pattern)
            expert = counts.setdefault((name, part), 0)
            counts[name, part] += 1
            pieces[key] = Piece(weight=name, expert=expert, part=part)
    return pieces


def _stacks_experts(converter: Any) -> bool:
    """Whether a rule makes one tensor of all experts' and lays parts of an expert below one another; nothing else."""
    steps = [(type(step).__name__, getattr(step, "dim", None)) for step in converter.operations]
    return steps in ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)])


def _renamed(model: Any, keys: Iterable[str]) -> Iterator[tuple[str, str, Any, str]]:
    """(name in the files, name in the model, rule that converts it or None, its pattern), in the order of loading."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    rules = get_model_conversion_mapping(model)
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    renamings: Any = [rule for rule in rules if not isinstance(rule, WeightConverter)]
    tensors: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    for key in sorted(keys, key=dot_natural_key):  # a rule may begin to hold with the first name of a group
        name, converted_by = rename_source_key(key, renamings, converters, model.base_model_prefix, tensors)
        converter = next((rule for rule in converters if converted_by in rule.source_patterns), None)
        if name in tensors:
            yield key, name, converter if converted_by is not None else None, converted_by or ""
