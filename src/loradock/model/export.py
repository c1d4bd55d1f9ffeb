"""What comes out: an adapter directory that plain peft loads, written whole, read back, then put in place."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.errors import Diverged, StorageError
from loradock.files import staged
from loradock.model import adapter_files, adapters, new_tokens, published
from loradock.model.adapters import BASE_CHANGING
from loradock.model.files import json_object
from loradock.model.tokenizer_copy import copy_tokenizer, put_template, put_tokens

if TYPE_CHECKING:
    from loradock.model.source import BaseModel

WEIGHTS = "adapter_model.safetensors"


def save_initial(model: Any, directory: Path, *, init: str, is_writing: bool) -> Path | None:
    """Keep the initial adapter of PiSSA or OLoRA, which changed the base: the export subtracts it. None for others."""
    if init not in BASE_CHANGING:
        return None
    target = directory / "initial"
    if is_writing:
        with staged.rewritten(target) as folder:
            model.save_pretrained(folder, save_embedding_layers=False)
    return target


def export(
    model: Any,
    directory: Path,
    *,
    tokenizer: Any,
    template: str | None,
    base: BaseModel,
    initial: Path | None,
    add_tokens: Sequence[str] = (),
) -> Path:
    """Write the adapter directory and return it.

    It holds float32 safetensors, the adapter config (with the base's name and revision), the base's tokenizer files
    with `add_tokens`, and the chat template that was trained. Raises StorageError where what was read back differs,
    Diverged where a weight is not finite; then nothing appears at `directory`.
    """
    expected = None if initial else adapters.state(model)
    with staged.rewritten(directory) as folder:
        with warnings.catch_warnings():
            # peft loads the initial adapter beside the trained one to subtract it, and warns of its own doing.
            message = ".*changes the base weights of the model"
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
            model.save_pretrained(
                folder,
                save_embedding_layers=False,
                state_dict=None if initial else adapters.tensors(model),  # with an initial one, peft looks for both
                path_initial_model_for_weight_conversion=str(initial) if initial else None,
            )
        copy_tokenizer(base.directory, folder, tokenizer=tokenizer)
        put_tokens(folder, new_tokens.ids_of(tokenizer, add_tokens))
        if template is not None:
            tokenizer.chat_template = template
            put_template(folder, template)
        settle_settings(folder / "adapter_config.json", base)
        verify(folder / WEIGHTS, expected)
        check_names(folder, base)
    return directory


def settle_settings(file: Path, base: BaseModel) -> None:
    """Write the base into the adapter config (the hub id and revision, or the directory's absolute path), and its form.

    Equal adapters have equal files: PEFT keeps targets in a set. A whole number is written as one, since readers in
    other languages (Ollama's) take nothing else for alpha.
    """
    settings = json_object(file)
    settings["base_model_name_or_path"] = base.name if base.revision else str(base.directory.resolve())
    settings["revision"] = base.revision
    if isinstance(settings.get("target_modules"), list):
        settings["target_modules"] = sorted(settings["target_modules"])
    settings["lora_alpha"] = _whole(settings["lora_alpha"])
    settings["alpha_pattern"] = {key: _whole(value) for key, value in (settings.get("alpha_pattern") or {}).items()}
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _whole(number: float) -> float:
    return int(number) if float(number).is_integer() else number


def check_names(folder: Path, base: BaseModel) -> None:
    """ModelError where the tensors of a written adapter do not fit the published class of its base, by its settings."""
    from peft import PeftConfig

    published.check(base, PeftConfig.from_pretrained(str(folder)), adapter_files.shapes_of(folder))


def verify(file: Path, expected: dict[str, Any] | None) -> None:
    """Read the weights back: all finite, and equal to what is in memory where that is known."""
    import torch
    from safetensors.torch import load_file

    written = load_file(file)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in written.values()):
        raise Diverged("the adapter holds non-finite weights; it was not exported", hint="lower train.learning_rate")
    if expected is None:
        return
    equal = written.keys() == expected.keys() and all(
        torch.equal(tensor, expected[name].detach().cpu()) for name, tensor in written.items()
    )
    if not equal:
        raise StorageError(
            f"{file} read back from disk differs from the adapter in memory", hint="check the disk, then export again"
        )
