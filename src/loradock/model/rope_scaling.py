"""RoPE scaling (`model.rope_scaling`, `model.rope_factor`): a base reads longer texts than it was trained on.

Linear scaling divides positions by the factor (Chen et al. 2023, Position Interpolation); YaRN leaves fast frequencies
as they are, divides slow ones, and sharpens attention (Peng et al. 2023). transformers computes both from the config's
`rope_parameters`, so that scaling is a matter of the config alone: whoever opens the adapter needs the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.config.sections.model import ModelConfig
from loradock.errors import ModelError

KEY = "model.rope_scaling"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How far a base's positions are stretched. `kind`: transformers' `rope_type`; `window`: the base's own positions.

    `positions`: those that there are then.
    """

    kind: str
    factor: float
    window: int

    @property
    def positions(self) -> int:
        """Positions of the scaled model."""
        return int(self.factor * self.window)

    @property
    def parameters(self) -> dict[str, Any]:
        """What the config's `rope_parameters` has of it."""
        original = {"original_max_position_embeddings": self.window} if self.kind == "yarn" else {}
        return {"rope_type": self.kind, "factor": self.factor, **original}

    def put(self, part: dict[str, Any]) -> None:
        """Write it into the part of a config.json that is about text, under the key that the file has."""
        if "rope_parameters" in part:
            part["rope_parameters"] = {**(part["rope_parameters"] or {}), **self.parameters}
        else:  # as transformers before 5 wrote it, and reads it; rope_theta stands beside it
            part["rope_scaling"] = self.parameters
        part["max_position_embeddings"] = self.positions

    def __str__(self) -> str:
        return f"{self.kind} x{self.factor:g}: {self.positions:,} positions, the base was trained on {self.window:,}"


def applied(config: Any, model_config: ModelConfig, *, trusted: bool) -> Scaling | None:
    """Scale the positions of a transformers config as asked, in place; None where nothing is asked for.

    ModelError for a base whose positions are not to be scaled, or are scaled already.
    """
    if model_config.rope_scaling == "off":
        return None
    text = config.get_text_config(decoder=True)
    if why := _refusal(text, trusted=trusted):
        raise ModelError(f"{KEY} {model_config.rope_scaling}: {model_config.name} {why}", hint=f"--set {KEY}=off")
    scaling = Scaling(
        kind=model_config.rope_scaling, factor=model_config.rope_factor, window=text.max_position_embeddings
    )
    text.rope_parameters = {**text.rope_parameters, **scaling.parameters}
    text.max_position_embeddings = scaling.positions
    return scaling


def _refusal(text: Any, *, trusted: bool) -> str | None:
    """Why the positions of a text model are not scaled, in words behind its name."""
    parameters = getattr(text, "rope_parameters", None) or {}
    if trusted:
        return "computes its positions by code that it ships"
    if any(isinstance(each, dict) for each in parameters.values()):
        return f"has several kinds of positions ({', '.join(sorted(parameters))}), and one scaling does not fit them"
    if "mrope_section" in parameters:
        return "has positions of images and video, too"
    if not parameters.get("rope_theta") or not getattr(text, "max_position_embeddings", None):
        return "has no rotary positions"
    if (kind := parameters.get("rope_type", "default")) != "default":
        return f"scales its positions already ({kind})"
    return None


def window_of(config: Any, scaling: Scaling | None, *, trusted: bool) -> int | None:
    """The positions that a base was trained on, where they are stretched or can be; None where they cannot."""
    if scaling:
        return scaling.window
    text = config.get_text_config(decoder=True)
    return None if _refusal(text, trusted=trusted) else text.max_position_embeddings


def check_taken(model: Any, scaling: Scaling | None, *, name: str) -> None:
    """ModelError where the class of a bare model, on any device, does not compute positions by its config."""
    if scaling and all(getattr(module, "rope_type", None) != scaling.kind for module in model.modules()):
        what = f"{KEY} {scaling.kind}: {type(model).__name__} ({name}) does not read it"
        raise ModelError(what, hint=f"--set {KEY}=off")


def notes(scaling: Scaling | None) -> list[str]:
    """What is said of it before a training."""
    if scaling is None:
        return []
    served = "the adapter needs it wherever it is used: generate, evaluate and merge take it from training.json"
    return [f"positions: {scaling}; texts of any length are read otherwise than by the base; {served}"]


def refuse_other(asked: ModelConfig, theirs: ModelConfig, *, directory: Path) -> None:
    """ModelError where an adapter was trained on positions that are stretched otherwise than a run asks."""
    factor = theirs.rope_factor if theirs.rope_scaling != "off" else asked.rope_factor
    if (theirs.rope_scaling, factor) != (asked.rope_scaling, asked.rope_factor):
        what = f"{KEY} {asked.rope_scaling}: the adapter in {directory} was trained with {theirs.rope_scaling}"
        if theirs.rope_scaling == "off":
            raise ModelError(what, hint=f"--set {KEY}=off")
        hint = f"--set {KEY}={theirs.rope_scaling} --set model.rope_factor={theirs.rope_factor:g}"
        raise ModelError(f"{what} x{theirs.rope_factor:g}", hint=hint)


def in_python(model: Mapping[str, Any], name: str, pin: str) -> tuple[str, str]:
    """Lines that stretch positions as a recorded `model` says, and the argument that hands them over; or nothing."""
    if model.get("rope_scaling", "off") == "off":
        return "", ""
    kind, factor = model["rope_scaling"], model["rope_factor"]
    original = ', "original_max_position_embeddings": window' if kind == "yarn" else ""
    lines = f"""config = AutoConfig.from_pretrained("{name}"{pin})
text = config.get_text_config(decoder=True)
window = text.max_position_embeddings
text.rope_parameters = {{**text.rope_parameters, "rope_type": "{kind}", "factor": {factor}{original}}}
text.max_position_embeddings = int({factor} * window)
"""
    return lines, ", config=config"
