"""The small files of a merged model: configuration, generation settings, tokenizer and chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from loradock.model import made_dense, reward_head
from loradock.model.files import json_object
from loradock.model.source import BaseModel
from loradock.model.tokenizer import directory_of, open_tokenizer
from loradock.model.tokenizer_copy import copy_tokenizer, is_unchanged, put_template, template_of
from loradock.use.merge import tensors
from loradock.use.merge.plan import MergePlan

CONFIG, GENERATION = "config.json", "generation_config.json"
KEPT = ("training.json", "embedding.json")
"""What an adapter's directory says of its training, where it says it."""
PROCESSORS = "*processor_config.json"
"""How images, video and audio become what the base's towers read: of both, of images alone, of video alone."""


def write(plan: MergePlan, folder: Path, *, stop_ids: Collection[int], dtype: str | None) -> None:
    """Write them all to the directory of the merged model. `stop_ids`: tokens that training learned as an end."""
    base = plan.base.directory
    config = _read(base / CONFIG)
    _write(folder / CONFIG, _config(config, plan, dtype=dtype))
    if not plan.adapted.is_reward:
        _write_generation(base, folder, config, stop_ids=stop_ids)
    _write_tokenizer(plan.base, plan.adapter, folder)
    names = {plan.adapter / name for name in KEPT if (plan.adapter / name).is_file()} | set(base.glob(PROCESSORS))
    names |= set(base.glob("*.py")) if plan.base.trust_remote_code else set()
    for file in sorted(names):
        shutil.copyfile(file, folder / file.name)


def _write_tokenizer(base: BaseModel, adapter: Path, folder: Path) -> None:
    """The base's files with the adapter's chat template; the adapter's own where its tokenizer is another."""
    if directory_of(base, adapter) == base.directory:
        copy_tokenizer(base.directory, folder)
    elif is_unchanged(base.directory, adapter):
        copy_tokenizer(base.directory, folder)
        if template := template_of(adapter):
            put_template(folder, template)
    else:
        copy_tokenizer(adapter, folder)


def _config(config: dict[str, Any], plan: MergePlan, *, dtype: str | None) -> dict[str, Any]:
    """The base's, with the embedding's vocabulary, its ties, stretched positions, and without a quantisation."""
    made_dense.unquantise(config)
    parts = [part for key, part in config.items() if key.endswith("_config") and isinstance(part, dict)]
    texts = [config, *([config["text_config"]] if config.get("text_config") in parts else [])]
    if plan.vocabulary not in (0, plan.base.config.get_text_config(decoder=True).vocab_size):
        texts[-1]["vocab_size"] = plan.vocabulary
    if plan.base.scaling:
        plan.base.scaling.put(texts[-1])
    if plan.is_untied:
        for part in texts:
            part["tie_word_embeddings"] = False
    if plan.adapted.is_reward:
        config |= {"architectures": [reward_head.class_of(plan.base.config).__name__]}
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        config["pad_token_id"] = open_tokenizer(plan.base, directory=plan.adapter).pad_token_id
    if dtype:
        for part in (config, *parts):
            for key in [key for key in made_dense.DTYPE_KEYS if key in part] or ["dtype"] * (part is config):
                part[key] = tensors.DTYPES[dtype]
    return config


def _write_generation(base: Path, folder: Path, config: dict[str, Any], *, stop_ids: Collection[int]) -> None:
    """The base's, whose tokens that end an answer are kept, and those that training learned come after them."""
    generation = _read(base / GENERATION) if (base / GENERATION).is_file() else {}
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    settings = {**(text or {}), **config, **generation}
    eos_ids = settings.get("eos_token_id")
    ends = list(eos_ids) if isinstance(eos_ids, list) else [] if eos_ids is None else [eos_ids]
    if "eos_token_id" in generation and set(stop_ids) <= set(ends):
        shutil.copyfile(base / GENERATION, folder / GENERATION)
        return
    for key in ("bos_token_id", "pad_token_id"):
        if settings.get(key) is not None:
            generation[key] = settings[key]
    ends += sorted(set(stop_ids) - set(ends))
    if ends:
        generation["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    _write(folder / GENERATION, generation)


def _read(file: Path) -> dict[str, Any]:
    return json_object(file)


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
