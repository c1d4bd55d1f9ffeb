"""The small files of a merged model: configuration, generation settings, tokenizer and chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from loradock.merge import tensors
from loradock.merge.plan import MergePlan
from loradock.model.files import json_object
from loradock.model.tokenizer import directory_of
from loradock.training.run_dir.fingerprint import TOKENIZER_PATTERNS

CONFIG, GENERATION = "config.json", "generation_config.json"
KEPT = ("training.json", "embedding.json")
"""What an adapter's directory says of its training, where it says it."""


def write(plan: MergePlan, folder: Path, *, stop_ids: Collection[int], dtype: str | None) -> None:
    """Write them all to the directory of the merged model. `stop_ids`: tokens that training learned as an end."""
    base = plan.base.directory
    config = _read(base / CONFIG)
    _write(folder / CONFIG, _config(config, plan, dtype=dtype))
    _write(folder / GENERATION, _generation(base, config, stop_ids=stop_ids))
    source = directory_of(plan.base, plan.adapter)
    names = {file for pattern in TOKENIZER_PATTERNS for file in source.glob(pattern) if file.is_file()}
    names |= {plan.adapter / name for name in KEPT if (plan.adapter / name).is_file()}
    names |= set(base.glob("*.py")) if plan.base.trust_remote_code else set()
    for file in sorted(names):
        shutil.copyfile(file, folder / file.name)


def _config(config: dict[str, Any], plan: MergePlan, *, dtype: str | None) -> dict[str, Any]:
    """The base's, with the vocabulary that the embedding has, its ties, and without a quantisation."""
    config.pop("quantization_config", None)
    parts = [config, *([config["text_config"]] if isinstance(config.get("text_config"), dict) else [])]
    holder = next((part for part in reversed(parts) if "vocab_size" in part), config)
    if plan.vocabulary:
        holder["vocab_size"] = plan.vocabulary
    if plan.is_untied:
        for part in parts:
            part["tie_word_embeddings"] = False
    if dtype:
        for part in parts:
            for key in [key for key in ("dtype", "torch_dtype") if key in part] or ["dtype"]:
                part[key] = tensors.DTYPES[dtype]
    return config


def _generation(base: Path, config: dict[str, Any], *, stop_ids: Collection[int]) -> dict[str, Any]:
    """The base's, whose tokens that end an answer are kept, and those that training learned come after them."""
    found = _read(base / GENERATION) if (base / GENERATION).is_file() else {}
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    own = {**(text or {}), **config, **found}
    for key in ("bos_token_id", "pad_token_id"):
        if own.get(key) is not None:
            found[key] = own[key]
    named = own.get("eos_token_id")
    ends = list(named) if isinstance(named, list) else [] if named is None else [named]
    ends += sorted(set(stop_ids) - set(ends))
    if ends:
        found["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    return found


def _read(file: Path) -> dict[str, Any]:
    return json_object(file)


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
