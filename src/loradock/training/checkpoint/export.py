"""An adapter directory out of a committed checkpoint, while the run that wrote it may be going on."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loradock import atomic_io
from loradock.atomic_io import open_to_the_group
from loradock.config.schema import RunConfig
from loradock.errors import InputMissing, ModelError, storage_error
from loradock.model.adapters import BASE_CHANGING
from loradock.training.checkpoint.manifest import Checkpoint

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"


def refuse_unfinished(config: RunConfig, directory: Path) -> None:
    """ModelError for PiSSA and OLoRA, which changed the base: only the end of the run subtracts the initial adapter."""
    if config.lora.init in BASE_CHANGING:
        raise ModelError(
            f"lora.init {config.lora.init} changed the base, so a checkpoint's adapter fits no published model",
            hint=f"loradock train --resume --output {directory} ends the run, whose adapter/ is right",
        )


def export_checkpoint(checkpoint: Checkpoint, output: Path, *, record: Mapping[str, Any], config: RunConfig) -> Path:
    """Write the adapter of a verified checkpoint to `output`, which does not exist yet; returns it.

    `record` is run.json: of the base its name, revision and path, of the data whether there were conversations. Raises
    DamagedCheckpoint where a file is no longer what was verified, Diverged for weights that are not finite,
    InputMissing where the base's files are gone (its tokenizer goes beside the adapter), DiskFull, NotWritable or
    StorageError; then nothing appears.
    """
    from loradock.model.export import name_base, verify
    from loradock.training.lineage import Lineage
    from loradock.training.recipe import Recipe

    model = _base(config, record.get("base") or {})
    is_chat = bool((record.get("data") or {}).get("conversations", True))
    run = checkpoint.path.parent.parent
    staged = output.with_name(f".{output.name}.{uuid.uuid4().hex}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        staged.mkdir()
        for name in (WEIGHTS, SETTINGS):
            atomic_io.write(staged / name, checkpoint.read(name))
        _tokenizer(config, model, is_chat=is_chat).save_pretrained(staged)
        Lineage.recorded(record, run).write(staged)
        if embedding := record.get("embedding"):
            Recipe.recorded(embedding, run).write(staged)
        name_base(staged / SETTINGS, model)
        verify(staged / WEIGHTS, None)
        open_to_the_group(staged)
        _flush(staged)
        os.rename(staged, output)
        atomic_io.sync_folder(output.parent)
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        if isinstance(error, OSError):
            raise storage_error(error, output) from error
        raise
    return output


def _base(config: RunConfig, recorded: Mapping[str, Any]) -> Any:
    """The base model as the run found it, without its weights."""
    from loradock.model.source import BaseModel, read_config

    directory = Path(recorded.get("path", "the path of the base"))
    if not (directory / "config.json").is_file():
        revision = f" --revision {recorded['revision']}" if recorded.get("revision") else ""
        hint = (
            f"hf download {recorded.get('name')}{revision}" if revision else f"put the base model back at {directory}"
        )
        raise InputMissing(f"the base model is not at {directory}, and the adapter needs its tokenizer", hint=hint)
    is_trusted = config.model.trust_remote_code == config.model.name
    return BaseModel(
        name=recorded["name"],
        directory=directory,
        revision=recorded["revision"],
        config=read_config(directory, trusted=is_trusted),
        trust_remote_code=is_trusted,
        weight_files=(),
    )


def _tokenizer(config: RunConfig, base: Any, *, is_chat: bool) -> Any:
    """The base's tokenizer with the chat template that the run trains; as it is where the rows are raw text."""
    from loradock.data.tokenise import TokenizerSpec
    from loradock.model.tokenizer import open_tokenizer

    tokenizer = open_tokenizer(base)
    if is_chat:
        tokenizer.chat_template = TokenizerSpec.of(tokenizer).template(config.data.template).text
    return tokenizer


def _flush(folder: Path) -> None:
    """Flush what libraries have written below a folder, and the folder."""
    for file in folder.iterdir():
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    atomic_io.sync_folder(folder)
