"""A directory that plain sentence-transformers loads, and that embeds as the run trained it.

The attention of such a directory is what `is_causal` in config.json says, nothing else is heard: a merged model has a
config.json of its own; an adapter names a base whose config.json says it, here a folder of links, the base view.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from loradock.errors import ModelError
from loradock.files import staged
from loradock.model import architecture, load, made_dense, prequantised
from loradock.model.adapter_files import as_json, settings_of, shapes_of
from loradock.model.export import verify
from loradock.model.files import json_object
from loradock.model.source import BaseModel
from loradock.model.tokenizer import open_tokenizer
from loradock.model.whole import quiet
from loradock.training.recipe import Recipe
from loradock.use.embedding import st_tokenizer
from loradock.use.embedding.evaluate import Instructions
from loradock.use.embedding.opener import base_of
from loradock.use.inference.opener import SETTINGS, with_adapter

WEIGHTS = "adapter_model.safetensors"
PLAIN_LORA = re.compile(r"\.lora_[AB]\.weight$")
VIEW = "base"
GENERATION = "generation_config.json"
MODULES = {
    "": "sentence_transformers.base.modules.transformer.Transformer",
    "1_Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "2_Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
REFUSED = {
    "weightedmean": "its weights count the tokens of the prompt, those of training begin after it",
    "cls": "it takes the first token after the prompt, training the first of all",
}


def export(
    adapter: Path,
    output: Path,
    *,
    is_merged: bool,
    asked: Instructions,
    given: str | None = None,
    trusted: Collection[str] = (),
) -> None:
    """Write the adapter (a directory with embedding.json) to `output`, which does not exist yet, for others.

    `given` and `trusted`: the base, as `base_of` has them. Raises ModelError where sentence-transformers would give
    other vectors, and what `base_of` and `staged.folder` raise; then nothing appears.
    """
    recipe = Recipe.read(adapter)
    refuse(recipe, adapter, is_merged=is_merged)
    base = base_of(adapter, given=given, trusted=trusted)
    refuse_wrapper(base)
    if is_merged and prequantised.is_nf4(base.config):
        what = f"{base.directory} holds its weights in NF4, and a model is merged into those that NF4 was made from"
        raise ModelError(what, hint="leave out --merge, or loradock embed RUN")
    if not is_merged and (form := made_dense.format_of(base.config)):
        what = f"{base.directory} holds its weights in {form.title}, which sentence-transformers multiplies otherwise"
        raise ModelError(what, hint="--merge, or loradock embed RUN")
    with staged.folder(output) as folder:
        tokenizer = open_tokenizer(base, directory=adapter)
        prompts = st_tokenizer.save(tokenizer, recipe, folder, query=asked.query, passage=asked.passage)
        if is_merged:
            write_merged(base, adapter, folder, is_causal=recipe.attention == "causal")
        else:
            write_view(base, adapter, folder, output=output, is_causal=recipe.attention == "causal")
        width = int(base.config.get_text_config().hidden_size)
        _write_modules(folder, recipe, width=width, query=prompts[0], passage=prompts[1])
        recipe.write(folder)


def refuse(recipe: Recipe, adapter: Path, *, is_merged: bool) -> None:
    """ModelError for what sentence-transformers does otherwise."""
    if recipe.pooling in REFUSED:
        what = f"sentence-transformers has another {recipe.pooling}: {REFUSED[recipe.pooling]}"
        raise ModelError(what, hint="use loradock embed, or train with embedding.pooling=mean or lasttoken")
    unsupported = sorted(key for key in shapes_of(adapter) if not PLAIN_LORA.search(key))
    if unsupported and not is_merged:
        what = f"the adapter holds {unsupported[0]}, and transformers reads nothing but plain LoRA with an adapter"
        raise ModelError(what, hint="add --merge")


def refuse_wrapper(base: BaseModel) -> None:
    """ModelError for a base that also sees or hears: sentence-transformers opens all of it, with its processor."""
    if architecture.is_wrapper(base.config):
        what = f"{base.directory} also reads images, audio or video, and only bases of text alone are exported"
        raise ModelError(what, hint="loradock embed RUN --input passages.txt -o passages.npy")


def write_merged(base: BaseModel, adapter: Path, folder: Path, *, is_causal: bool) -> None:
    """The merged model, in the dtype of the base's files, with its config.json.

    Those files are read unquantised: a run on NF4 weights is merged into the weights that NF4 was made from, too.
    """
    model_config = Recipe.read(adapter).model(base.name, revision=None, quantization="none")
    with quiet():
        adapted = with_adapter(load.load_whole(base, model_config, dtype="auto", device="cpu"), adapter)
        model = adapted.merge_and_unload()  # PEFT keeps the adapter in float32, and so adds in it
        model.save_pretrained(folder)
        rows = model.get_input_embeddings().weight.shape[0]
    (folder / GENERATION).unlink(missing_ok=True)  # of a model that embeds; what the library wrote is its newest form
    _write_config(base, folder / "config.json", is_causal=is_causal, rows=rows)


def write_view(base: BaseModel, adapter: Path, folder: Path, *, output: Path, is_causal: bool) -> None:
    """The adapter, and the base as links with a config.json of its own; the adapter names that by its path."""
    view = folder / VIEW
    view.mkdir()
    for file in base.directory.iterdir():
        if file.is_file() and file.name != "config.json":
            (view / file.name).symlink_to(file.resolve())
    _write_config(base, view / "config.json", is_causal=is_causal)
    shutil.copyfile(adapter / WEIGHTS, folder / WEIGHTS)
    verify(folder / WEIGHTS, None)
    settings = as_json(settings_of(adapter))
    settings |= {"base_model_name_or_path": str(output.resolve() / VIEW), "revision": None}
    _write(folder / SETTINGS, settings)


def _write_config(base: BaseModel, target: Path, *, is_causal: bool, rows: int | None = None) -> None:
    """The base's config.json with what a token sees, for the whole model and for the part that reads text.

    Positions that training stretched are stretched there, too.

    `rows`: of the vocabulary, where the adapter may have added some.
    """
    config: dict[str, Any] = json_object(base.directory / "config.json")
    if made_dense.format_of(config):
        made_dense.unquantise(config)
    for part in (config, config.get("text_config")):
        if part is not None and not is_causal:
            part["is_causal"] = False
        if rows and part is not None and "vocab_size" in part:
            part["vocab_size"] = rows
    if base.scaling:
        base.scaling.put(config.get("text_config") or config)
    _write(target, config)


def _write_modules(folder: Path, recipe: Recipe, *, width: int, query: str, passage: str) -> None:
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": kind}
        for place, (path, kind) in enumerate(MODULES.items())
    ]
    _write(folder / "modules.json", modules)
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    reader = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": text},  # without it, texts would be put into the tokenizer's chat template
        "module_output_name": "token_embeddings",
        "max_seq_length": recipe.passage_length,
        "query_length": recipe.query_length,
        "document_length": recipe.passage_length,
    }
    _write(folder / "sentence_bert_config.json", reader)
    pooling = {"embedding_dimension": width, "pooling_mode": recipe.pooling, "include_prompt": recipe.pool_instruction}
    _write(folder / "1_Pooling" / "config.json", pooling)
    (folder / "2_Normalize").mkdir()
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": query, "document": passage},
        "default_prompt_name": "document",
        "similarity_fn_name": "cosine",
    }
    _write(folder / "config_sentence_transformers.json", settings)
    (folder / "README.md").write_text(CARD, encoding="utf-8")


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [lora]
---

# An embedding model

Exported by loradock; `embedding.json` says how it was trained to embed.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")  # the directory that holds this model card
queries = model.encode_query(["How tall is K2?"])
passages = model.encode_document(["K2 has 8,611 m."])
print(model.similarity(queries, passages))
```

The prompts in `config_sentence_transformers.json` hold what stands before a text, its instruction with it.
"""
