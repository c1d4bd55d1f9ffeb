"""What the files of a base call the weights of its model, by transformers' own rules for loading it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def in_model(model: Any, keys: Iterable[str]) -> dict[str, str]:
    """{name in the files: name in the model}, of the tensors that are one weight of the model as they lie there.

    Left out are those that the model has no use for, and those that loading fuses, splits or turns.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    rules = get_model_conversion_mapping(model)
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    renamings: Any = [rule for rule in rules if not isinstance(rule, WeightConverter)]
    tensors: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    names: dict[str, str] = {}
    for key in sorted(keys, key=dot_natural_key):  # a rule may begin to hold with the first name of a group
        name, converted_by = rename_source_key(key, renamings, converters, model.base_model_prefix, tensors)
        if converted_by is None and name in tensors:
            names[key] = name
    return names
