"""The shipped configurations, each with its source."""

from __future__ import annotations

from importlib import resources

from loradock.config.strict_yaml import Document, parse_document
from loradock.errors import ConfigError
from loradock.text.suggest import did_you_mean


def preset_names() -> list[str]:
    """The names of the shipped presets, sorted."""
    folder = resources.files("loradock.config.presets")
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """The YAML of a preset. Raises ConfigError with the nearest name and the list where there is none."""
    names = preset_names()
    if name not in names:
        question = did_you_mean(name, names, before="--preset ", alike=0.4)
        hint = " ".join(filter(None, (question, f"the presets are: {', '.join(names)}")))
        raise ConfigError(f"unknown preset: {name}", hint=hint)
    return (resources.files("loradock.config.presets") / f"{name}.yaml").read_text(encoding="utf-8")


def read_preset(name: str) -> Document:
    """The parsed YAML of a preset. Raises ConfigError where there is no such preset."""
    return parse_document(preset_text(name), file=f"preset {name}")
