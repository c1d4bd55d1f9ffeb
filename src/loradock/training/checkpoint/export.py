"""An adapter directory out of a committed checkpoint, while the run that wrote it may be going on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from loradock.config.schema import RunConfig
from loradock.errors import InputMissing, ModelError
from loradock.files import atomic_io, staged
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


def export_checkpoint(
    checkpoint: Checkpoint,
    output: Path,
    *,
    record: Mapping[str, Any],
    config: RunConfig,
    base: str | None = None,
    trusted: Collection[str] = (),
) -> Path:
    """Write the adapter of a verified checkpoint to `output`, which does not exist yet; returns it.

    `record` is run.json: of the base its name, revision and path, of the data whether there were conversations. `base`:
    where the base lies now, in place of that; `trusted`: names of models whose own code a person lets run. Raises
    DamagedCheckpoint where a file is no longer what was verified, Diverged for weights that are not finite,
    InputMissing where the base's files are gone (its tokenizer goes beside the adapter), and as `staged.folder`; then
    nothing appears.
    """
    from loradock.model.export import settle_settings, verify
    from loradock.training.lineage import Lineage
    from loradock.training.recipe import Recipe

    model = _base(record.get("base") or {}, given=base, trusted=trusted)
    is_chat = bool((record.get("data") or {}).get("conversations", True))
    run = checkpoint.path.parent.parent
    with staged.folder(output) as folder:
        for name in (WEIGHTS, SETTINGS):
            atomic_io.write(folder / name, checkpoint.read(name))
        _write_tokenizer(config, model, folder, is_chat=is_chat)
        Lineage.recorded(record, run).write(folder)
        if embedding := record.get("embedding"):
            Recipe.recorded(embedding, run).write(folder)
        settle_settings(folder / SETTINGS, model)
        verify(folder / WEIGHTS, None)
    return output


def _base(recorded: Mapping[str, Any], *, given: str | None, trusted: Collection[str]) -> Any:
    """The base model as the run found it, or where a person says, without its weights."""
    from loradock.model.source import BY_OPTION, BaseModel, read_config, trusts

    directory = Path(given or recorded.get("path", "the path of the base"))
    if not (directory / "config.json").is_file():
        revision = f" --revision {recorded['revision']}" if recorded.get("revision") else ""
        fetch = f"hf download {recorded.get('name')}{revision}, or " if revision and not given else ""
        hint = f"{fetch}--base-model DIR says where it lies"
        raise InputMissing(f"the base model is not at {directory}, and the adapter needs its tokenizer", hint=hint)
    name = given or recorded["name"]
    is_trusted = trusts(trusted, name, directory)
    return BaseModel(
        name=name,
        directory=directory,
        revision=None if given else recorded["revision"],
        config=read_config(directory, name=name, trusted=is_trusted, trust_option=BY_OPTION),
        trust_remote_code=is_trusted,
        weight_files=(),
    )


def _write_tokenizer(config: RunConfig, base: Any, folder: Path, *, is_chat: bool) -> None:
    """The base's tokenizer with the chat template that the run trains; as it is where the rows are raw text."""
    from loradock.data.tokenise import TokenizerSpec
    from loradock.model.new_tokens import ids_of
    from loradock.model.tokenizer import open_tokenizer
    from loradock.model.tokenizer_copy import copy_tokenizer, put_template, put_tokens

    added = config.tokenizer.add_tokens
    tokenizer = open_tokenizer(base, add_tokens=added)
    copy_tokenizer(base.directory, folder, tokenizer=tokenizer)
    put_tokens(folder, ids_of(tokenizer, added))
    if is_chat:
        put_template(folder, TokenizerSpec.of(tokenizer).template(config.data.template).text)
