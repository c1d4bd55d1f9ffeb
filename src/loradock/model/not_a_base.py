"""What is given where a base model is meant, and is none: an adapter, a run, a GGUF file. Each is told what it is."""

from __future__ import annotations

from pathlib import Path

from loradock.errors import LoradockError, ModelError
from loradock.model import weights
from loradock.model.files import json_object

SETTINGS, RECORD, ADAPTER = "adapter_config.json", "run.json", "adapter"
CONTINUE = "--model {base} --set lora.adapter={path} continues it; --model {base} alone trains a new one"


def described(path: Path) -> str | None:
    """What a path is where it is an adapter, the directory of a run, or GGUF; None for what may be a base."""
    if path.suffix == ".gguf" and path.is_file():
        return "GGUF, the format of llama.cpp"
    if not path.is_dir() or weights.files(path):
        return None
    if (path / SETTINGS).is_file():
        return "an adapter"
    if (path / RECORD).is_file():
        return "the directory of a run"
    return "a directory of GGUF, the format of llama.cpp" if any(path.glob("*.gguf")) else None


def refuse(path: Path) -> None:
    """ModelError where a path that was given as the model to train is none of those, with what can be done instead."""
    what = described(path)
    if not what:
        return
    if "GGUF" in what:
        hint = "--model DIR of the model that it was converted from (config.json, *.safetensors, tokenizer files)"
    elif (path / SETTINGS).is_file():
        hint = CONTINUE.format(base=_base_of(path / SETTINGS) or "BASE", path=path)
    else:
        hint = CONTINUE.format(base=_base_of(path / ADAPTER / SETTINGS) or "BASE", path=path)
    raise ModelError(f"{path} is {what}, not a base model", hint=hint)


def _base_of(settings: Path) -> str | None:
    """The base that an adapter's settings name, where they can be read."""
    try:
        name = json_object(settings).get("base_model_name_or_path")
    except LoradockError:
        return None
    return name if isinstance(name, str) and name else None
