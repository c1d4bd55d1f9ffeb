"""Opens what a training run left behind for embedding: a run directory, an adapter, or a merged model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from loradock.model import load
from loradock.model.content import digest
from loradock.model.source import BaseModel
from loradock.model.tokenizer import open_tokenizer
from loradock.model.whole import quiet
from loradock.training.lineage import Lineage
from loradock.training.recipe import Recipe
from loradock.use.embedding.embedder import BATCH_TOKENS, Embedder
from loradock.use.inference.base import check_weights, checked, find_base
from loradock.use.inference.opener import SETTINGS, chosen_device, chosen_dtype, directory_of, with_adapter


def open_embedder(
    given: Path,
    *,
    quantization: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    base: str | None = None,
    trusted: Collection[str] = (),
    batch_tokens: int = BATCH_TOKENS,
) -> Embedder:
    """The embedder of a run, adapter or model directory; `base` and `trusted` as `inference.opener.find` has them.

    `quantization` None: the base as it was trained; a merged model is not quantised. Raises as `directory_of`,
    `Recipe.read`, `base_of`, `check_weights` and `load.load_whole` do.
    """
    directory = directory_of(given)
    recipe = Recipe.read(directory)
    is_adapter = (directory / SETTINGS).is_file()
    if is_adapter:
        found = base_of(directory, given=base, trusted=trusted)
    else:
        found = checked(recipe.model(str(directory), revision=None), directory, trusted=trusted)
    if is_adapter and (lineage := Lineage.read(directory)):
        check_weights(found, lineage, found=lambda: digest(found.weight_files))
    place = chosen_device(device)
    computed = chosen_dtype(recipe.compute_dtype if dtype == "auto" else dtype, place)
    asked = recipe.model(found.name, revision=None, quantization=quantization or (None if is_adapter else "none"))
    with quiet():
        model = load.load_whole(found, asked, dtype=computed, device=place)
        model = with_adapter(model, directory) if is_adapter else model
    tokenizer = open_tokenizer(found, directory=directory)
    return Embedder(model, tokenizer, recipe, dtype=computed, has_adapter=is_adapter, batch_tokens=batch_tokens)


def base_of(adapter: Path, *, given: str | None, trusted: Collection[str]) -> BaseModel:
    """The base of an adapter directory with a recipe. Raises as `find_base` does."""
    recipe, lineage = Recipe.read(adapter), Lineage.read(adapter)
    asked = lineage.model() if lineage else recipe.model(recipe.base.name, revision=recipe.base.revision)
    return find_base(adapter, asked, named=recipe.base.name, given=given, trusted=trusted)
