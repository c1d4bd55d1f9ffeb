"""How the tools name scaled positions: a kind alone, or transformers' mapping with its factor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from loradock.config.other_tools.base import Translation, as_number

KINDS = ("linear", "yarn")


def scaling(translation: Translation, name: str, value: Any) -> None:
    """`yarn`, or `{rope_type: yarn, factor: 4.0}`, as a mapping or its JSON text; other kinds are told."""
    parameters = _mapping(value)
    kind = str(parameters.get("rope_type") or parameters.get("type"))
    if kind not in KINDS:
        translation.leave(name, f"{kind}: model.rope_scaling is linear or yarn")
        return
    factor = as_number(parameters.get("factor"))
    if not factor:
        ours = f"write model.rope_scaling: {kind} and model.rope_factor: data.max_length over that window, rounded up"
        translation.leave(name, f"its factor follows from the base's window: {ours}")
    elif factor > 1:
        translation.put("model.rope_scaling", kind, name)
        translation.put("model.rope_factor", factor, name)


def of_model_config(translation: Translation, name: str, value: Any) -> None:
    """axolotl's `overrides_of_model_config`, of which positions alone have a counterpart."""
    for key, setting in cast("Mapping[str, Any]", value).items() if isinstance(value, Mapping) else ():
        if key in ("rope_scaling", "rope_parameters"):
            scaling(translation, name, setting)
        else:
            translation.leave(f"{name} {key}", "the model's config.json says it")


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {"rope_type": value}
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {"rope_type": value}
