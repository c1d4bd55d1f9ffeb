"""Let a model answer as its callers here ask it to, whatever form of answer its config.json asks for.

`return_dict: false` makes it answer with a tuple, from which nothing can be taken by name; `output_hidden_states` and
`output_attentions` make it keep tensors of every layer that nobody reads.
"""

from __future__ import annotations

from typing import Any

ANSWERS: dict[str, bool] = {"return_dict": True, "output_hidden_states": False, "output_attentions": False}


def apply(model: Any) -> int:
    """Set them for the model and for the text model in it; returns how many were otherwise. A bare layer has none."""
    if not hasattr(model, "config"):
        return 0
    outputs = [
        (config, key, value)
        for config in {id(config): config for config in (model.config, model.config.get_text_config())}.values()
        for key, value in ANSWERS.items()
        if getattr(config, key, value) != value
    ]
    for config, key, value in outputs:
        setattr(config, key, value)
    return len(outputs)
