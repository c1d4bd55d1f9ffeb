"""The embedding: as long as the configuration says, and long enough for each id that the tokenizer gives."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from loradock.env_check.base import Check, Finding, Intent, error, ok
from loradock.errors import ModelError
from loradock.facts import Facts
from loradock.files import foreign_json
from loradock.machine import Host
from loradock.model import headers, hub_cache, tokenizer_files, weights
from loradock.model.tokenizer_files import TokenizerFiles


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """What cannot be read is the business of the checks of the base and the tokenizer, and not judged here."""
    assert plan.config is not None
    model = plan.config.model
    directory = hub_cache.directory_of(model.name, model.revision, environ=host.environ)
    try:
        if directory is None:
            return [ok("the model is not here yet")]
        config = foreign_json.read(directory / "config.json")
        files = tokenizer_files.read(directory)
        shape = headers.embedding(headers.shapes(weights.files(directory)))
    except (OSError, ValueError):
        return [ok("the model's files cannot be compared")]
    rows = _vocabulary(config)
    return judge(rows, rows_in_weights=shape[0] if shape else None, files=files, directory=directory)


def _vocabulary(config: Any) -> int | None:
    text = (config.get("text_config") or config) if isinstance(config, dict) else {}
    rows = text.get("vocab_size")
    return rows if isinstance(rows, int) else None


def judge(rows: int | None, *, rows_in_weights: int | None, files: TokenizerFiles, directory: Path) -> list[Finding]:
    """`rows` is the configuration's vocab_size."""
    remedy = f"hf download OWNER/NAME --local-dir {shlex.quote(str(directory))}"
    if rows is not None and rows_in_weights is not None and rows != rows_in_weights:
        what = f"{directory}: config.json says {rows} embeddings, the weights hold {rows_in_weights}"
        return [error(what, remedy=remedy, ends=ModelError)]
    have = rows if rows is not None else rows_in_weights
    if have is None or files.ids is None:
        return [ok("compared when the tokenizer is opened")]
    if files.ids > have:
        extra = f" ({', '.join(files.added[:3])} would be added)" if files.added else ""
        what = f"the tokenizer in {directory} gives {files.ids} ids{extra}, the model has {have} embeddings"
        return [error(what, remedy=remedy, ends=ModelError)]
    return [ok(f"{files.ids} ids, {have} embeddings")]


CHECK = Check(
    name="embedding",
    group="model",
    proves="The model has an embedding for each id of the tokenizer, added tokens included.",
    look=look,
    needs="config",
)
