"""A run that begins with an adapter (`lora.adapter`): its settings, that it is of this base, and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loradock.config.schema import RunConfig
from loradock.errors import InputMissing, ModelError, NoCheckpoint
from loradock.files import regular
from loradock.model import adapter_files, adapters, content, tokenizer_files
from loradock.model.adapter_files import SETTINGS, WEIGHTS
from loradock.model.opening import Opening
from loradock.model.source import BaseModel
from loradock.training.lineage import Lineage
from loradock.training.run_dir.paths import ADAPTER, RECORD


def directory_of(name: str) -> Path:
    """The adapter's directory: what was given, or that of a finished run. InputMissing where it is neither."""
    path = Path(name)
    for directory in (path, path / ADAPTER):
        if (directory / SETTINGS).is_file():
            return directory
    what = f"lora.adapter: {path} does not exist"
    if (path / RECORD).is_file():
        what = f"lora.adapter: the run in {path} has no adapter yet"
    elif path.exists():
        what = f"lora.adapter: {path} is neither an adapter (no {SETTINGS}) nor a run"
    raise InputMissing(what, hint="--set lora.adapter=RUN or ADAPTER, of a run that has finished")


def keys_of(name: str) -> dict[str, object]:
    """The keys that its settings decide. Raises as `directory_of`, `adapter_files.check` and `tokens_of`."""
    directory = directory_of(name)
    settings = adapter_files.check(directory)
    more = settings.model_extra or {}
    alpha = settings.lora_alpha
    keys: dict[str, object] = {
        "rank": settings.r,
        "alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "rank_pattern": dict(settings.rank_pattern),
        "alpha_pattern": dict(settings.alpha_pattern),
        "dora": settings.use_dora,
        "rslora": bool(more.get("use_rslora", False)),
        "modules_to_save": list(settings.modules_to_save or ()),
    }
    keys["add_tokens"] = tokens_of(directory, settings)
    if isinstance(settings.target_modules, list):
        keys["targets"] = sorted(settings.target_modules)
    return {f"{'tokenizer' if key == 'add_tokens' else 'lora'}.{key}": value for key, value in keys.items()}


def tokens_of(directory: Path, settings: adapter_files.Settings) -> list[str]:
    """The texts of the tokens whose rows an adapter trains, in the order of their ids.

    ModelError where its tokenizer does not say them.
    """
    ids = sorted(set[int]().union(*settings.places.values()))
    tokens = [token for number in ids if (token := tokenizer_files.token_of(directory, number)) is not None]
    if len(tokens) < len(ids):
        what = f"{directory} has rows of {len(ids)} new tokens, and no tokenizer that says which they are"
        raise ModelError(what, hint=f"copy the tokenizer's files of the run into {directory}")
    return tokens


def identity_of(config: RunConfig) -> dict[str, str]:
    """For the fingerprint: the weights that a run begins with, wherever they lie; nothing of a fresh adapter."""
    if config.lora.adapter is None:
        return {}
    return {"lora.adapter.content": content.digest([directory_of(config.lora.adapter) / WEIGHTS])}


def into(model: Any, config: RunConfig, *, base: BaseModel) -> list[str]:
    """Put the weights of `lora.adapter` into a fresh adapter, in place; a line for people, none without one.

    ModelError where it was trained on another base, or its tensors are not those of the layers that are adapted.
    """
    if config.lora.adapter is None:
        return []
    directory = directory_of(config.lora.adapter)
    lineage = Lineage.found(directory)
    if lineage and lineage.base_weights and lineage.base_weights != content.digest(base.weight_files):
        what = f"{directory} was trained on another base than {base.name}: the weight files differ"
        raise ModelError(what, hint=f"--model {lineage.base}")
    tokens = tuple(tokens_of(directory, adapter_files.check(directory)))
    theirs = Opening(model=lineage.model() if lineage else config.model, tokens=tokens)
    Opening.of(config).refuse_other(theirs, directory)
    with regular.opened(directory / WEIGHTS) as stream:
        weights = stream.read()
    try:
        adapters.restore(model, weights)
    except NoCheckpoint as error:
        what = f"{directory} is not an adapter of the layers that are trained here: {error.what.partition(': ')[2]}"
        raise ModelError(
            what, hint="leave out lora.targets and the other keys of lora: they are the adapter's"
        ) from error
    unknown = "" if lineage else ", of which nobody recorded the base"
    return [f"the run begins with the adapter in {directory}{unknown}"]
