"""Opens what a training run left behind for embedding: a run directory, an adapter, or a merged model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from loradock.embedding.embedder import BATCH_TOKENS, Embedder
from loradock.errors import EnvironmentUnfit, InputMissing, ModelError, NoCheckpoint
from loradock.model import load, source
from loradock.model.tokenizer import open_tokenizer
from loradock.model.whole import quiet
from loradock.training.recipe import Recipe
from loradock.training.run_dir.paths import ADAPTER, RECORD

SETTINGS = "adapter_config.json"
FIRST_BFLOAT16 = (8, 0)


def directory_of(given: Path) -> Path:
    """The adapter or model directory that is meant: of a run its adapter. InputMissing or NoCheckpoint if none is."""
    if (given / RECORD).is_file():
        if (given / ADAPTER / SETTINGS).is_file():
            return given / ADAPTER
        what = f"the run in {given} is not finished: it has no adapter yet"
        raise NoCheckpoint(what, hint=f"loradock checkpoint export {given} -o ADAPTER")
    if not ((given / SETTINGS).is_file() or (given / "config.json").is_file()):
        what = f"{given} holds neither a run, nor an adapter, nor a model"
        raise InputMissing(what, hint=f"name the directory that holds {RECORD}, {SETTINGS} or config.json")
    return given


def open_embedder(
    given: Path,
    *,
    quantization: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    batch_tokens: int = BATCH_TOKENS,
) -> Embedder:
    """The embedder of a run, adapter or model directory.

    `quantization` None: the base as it was trained; a merged model is not quantised. Raises as `directory_of`,
    `Recipe.read`, `source.find` and `load.load_whole` do.
    """
    directory = directory_of(given)
    recipe = Recipe.read(directory)
    is_adapter = (directory / SETTINGS).is_file()
    base = find_base(directory) if is_adapter else source.find(recipe.model(str(directory), revision=None))
    place = _device(device)
    computed = _dtype(recipe.compute_dtype if dtype == "auto" else dtype, place)
    asked = recipe.model(base.name, revision=None, quantization=quantization or (None if is_adapter else "none"))
    with quiet():
        model = load.load_whole(base, asked, dtype=computed, device=place)
        model = with_adapter(model, directory) if is_adapter else model
    tokenizer = open_tokenizer(base, directory=directory)
    return Embedder(model, tokenizer, recipe, dtype=computed, has_adapter=is_adapter, batch_tokens=batch_tokens)


def find_base(adapter: Path) -> source.BaseModel:
    """The base that an adapter directory names. ModelError where it names none; raises as `source.find` does."""
    settings = json.loads((adapter / SETTINGS).read_text(encoding="utf-8"))
    name = settings.get("base_model_name_or_path")
    if not name:
        raise ModelError(f"{adapter / SETTINGS} names no base model", hint='set its "base_model_name_or_path"')
    return source.find(Recipe.read(adapter).model(name, revision=settings.get("revision")))


def with_adapter(model: Any, adapter: Path) -> Any:
    """The PeftModel with the adapter of a directory. ModelError where it does not fit the base."""
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, str(adapter))
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelError(f"the adapter in {adapter} does not load: {first}", hint="is it of this base?") from error


def _device(asked: str) -> str:
    has_gpu = torch.cuda.is_available()
    if asked == "cuda" and not has_gpu:
        raise EnvironmentUnfit("there is no usable GPU", hint="loradock env-check, or --device cpu")
    return "cuda:0" if has_gpu and asked != "cpu" else "cpu"


def _dtype(asked: str, device: str) -> torch.dtype:
    """As `plan.knobs.compute_dtype` decides for a run."""
    if device == "cpu":
        return torch.bfloat16 if asked == "bfloat16" else torch.float32
    if asked != "auto":
        return getattr(torch, asked)
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= FIRST_BFLOAT16 else torch.float16
