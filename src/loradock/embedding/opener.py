"""Opens what a training run left behind for embedding: a run directory, an adapter, or a merged model."""

from __future__ import annotations

from pathlib import Path

from loradock.embedding.embedder import BATCH_TOKENS, Embedder
from loradock.errors import ModelError
from loradock.inference.opener import SETTINGS, check_weights, chosen_device, chosen_dtype, directory_of, with_adapter
from loradock.model import load, source
from loradock.model.adapter_files import settings_of
from loradock.model.content import digest
from loradock.model.tokenizer import open_tokenizer
from loradock.model.whole import quiet
from loradock.training.lineage import Lineage
from loradock.training.recipe import Recipe


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
    `Recipe.read`, `source.find`, `check_weights` and `load.load_whole` do.
    """
    directory = directory_of(given)
    recipe = Recipe.read(directory)
    is_adapter = (directory / SETTINGS).is_file()
    base = find_base(directory) if is_adapter else source.find(recipe.model(str(directory), revision=None))
    if is_adapter and (lineage := Lineage.read(directory)):
        check_weights(base, lineage, found=lambda: digest(base.weight_files))
    place = chosen_device(device)
    computed = chosen_dtype(recipe.compute_dtype if dtype == "auto" else dtype, place)
    asked = recipe.model(base.name, revision=None, quantization=quantization or (None if is_adapter else "none"))
    with quiet():
        model = load.load_whole(base, asked, dtype=computed, device=place)
        model = with_adapter(model, directory) if is_adapter else model
    tokenizer = open_tokenizer(base, directory=directory)
    return Embedder(model, tokenizer, recipe, dtype=computed, has_adapter=is_adapter, batch_tokens=batch_tokens)


def find_base(adapter: Path) -> source.BaseModel:
    """The base that an adapter directory names. ModelError where it names none; raises as `source.find` does."""
    settings = settings_of(adapter)
    name = settings.base_model_name_or_path
    if not name:
        raise ModelError(f"{adapter / SETTINGS} names no base model", hint='set its "base_model_name_or_path"')
    return source.find(Recipe.read(adapter).model(name, revision=settings.revision))
