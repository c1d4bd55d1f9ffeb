"""What an adapter does to each weight of its base, as PEFT itself resolves it, without a weight in memory.

The base is built on the meta device and PEFT puts its layers on it: patterns of targets, ranks and alphas, rank
stabilisation, DoRA and orientation are PEFT's own answers. A layer's tensors come in when it is merged.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.errors import InputMissing, ModelError
from loradock.merge import tensors
from loradock.model import patterns
from loradock.model.adapter_files import HINT, check, first_line
from loradock.model.patches import BUILDING
from loradock.model.source import BaseModel
from loradock.model.spread import skeleton

if TYPE_CHECKING:
    import torch

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
SERVE = "serve the adapter beside its base instead"
PREFIX = "base_model.model."
ADAPTER = "default"
PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base as it was published."""


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A PEFT layer over one weight, and which of the file's tensors are its own: {file key: (module, parameter)}."""

    layer: Any
    parts: Mapping[str, tuple[Any, str]]


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """Names are the model's own (`model.layers.0.self_attn.q_proj.weight`).

    `deltas`: weights with LoRA. `whole`: weights that the adapter replaces, with the file's key. `tied`: groups of
    names that are one tensor in the base. `files`: the adapter's tensors by key. `names`: all names of the model, with
    their shapes. `embedding`: the name of the input embedding.
    """

    deltas: Mapping[str, Delta]
    whole: Mapping[str, str]
    tied: tuple[frozenset[str], ...]
    files: Mapping[str, tensors.Entry]
    names: Mapping[str, tuple[int, ...]]
    embedding: str

    def tied_to(self, name: str) -> frozenset[str]:
        """All names of the tensor of this name."""
        return next((group for group in self.tied if name in group), frozenset([name]))


def adapted(base: BaseModel, adapter: Path) -> Adapted:
    """What the adapter in a directory does to the base.

    Raises InputMissing where its files are not there, ModelError where it is of another kind than LoRA, of another
    architecture, truncated, or has tensors that would be left over.
    """
    for name in (WEIGHTS, SETTINGS):
        if not (adapter / name).is_file():
            raise InputMissing(f"{adapter / name} does not exist", hint="name an adapter directory, or its run")
    checked = check(adapter)
    settings = _settings(adapter)
    model = empty(base)
    patterns.check(adapter, checked, (name for name, _ in model.named_modules()))
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters(remove_duplicate=False)}
    tied = _tied(model)
    embedding = model.get_input_embeddings()
    named = next(name for name, module in model.named_modules() if module is embedding)
    files = _files(adapter / WEIGHTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tied targets and orientation: both are merged as PEFT computes them
        layered = _layered(model, settings, base)
    keys = _keys(layered)
    _refuse_missing(adapter, base, expected=keys, files=files)
    deltas, whole, used = _resolved(layered, keys)
    for key in files.keys() - keys.keys():
        name = original(key)
        group = next((group for group in tied if name in group), frozenset([name]))
        if name not in shapes or files[key].shape[1:] != shapes[name][1:]:
            continue
        whole |= dict.fromkeys(group, key)
        used.add(key)
    if left := sorted(files.keys() - used):
        raise ModelError(
            f"{len(left)} tensors of {adapter / WEIGHTS} belong to nothing in {base.directory}, first {left[0]}",
            hint="is the adapter of this base? loradock merges LoRA, DoRA and whole modules",
        )
    return Adapted(deltas=deltas, whole=whole, tied=tied, files=files, names=shapes, embedding=f"{named}.weight")


def empty(base: BaseModel) -> Any:
    """The base on the meta device. Raises ModelError where transformers cannot build it."""
    import torch

    for patch in BUILDING:
        patch(base.config)
    return skeleton(base, dtype=torch.float32, attention="eager")


def original(name: str) -> str:
    """The base's own name of a parameter of a PEFT model, or of a key of an adapter's file."""
    return name.removeprefix(PREFIX).replace(".base_layer.", ".").replace(f".modules_to_save.{ADAPTER}.", ".")


def _settings(adapter: Path) -> Any:
    from peft import PeftConfig

    file = adapter / SETTINGS
    try:
        settings: Any = PeftConfig.from_pretrained(str(adapter))
    except Exception as error:  # what PEFT says of settings that it does not know has any type
        raise ModelError(f"{file}: {first_line(error)}", hint=HINT) from error
    started = getattr(settings, "init_lora_weights", True)
    refused = (
        f"an adapter that began with {started}, which changed its base" if started not in PLAIN_STARTS
        else "an adapter with biases of its own" if settings.lora_bias
        else "an adapter of single tokens (trainable_token_indices)" if settings.trainable_token_indices
        else "an adapter of replicated layers (layer_replication)" if settings.layer_replication
        else "an adapter of fused expert weights (target_parameters)" if settings.target_parameters
        else None
    )  # fmt: skip
    if refused:
        raise ModelError(f"{adapter} is {refused}, which is not merged", hint=SERVE)
    settings.init_lora_weights = False
    settings.inference_mode = True
    return settings


def _files(file: Path) -> dict[str, tensors.Entry]:
    from loradock.model.weights import safetensors_problem

    if wrong := safetensors_problem(file):
        raise ModelError(f"{file} {wrong}", hint="copy the adapter directory again")
    return {entry.name: entry for entry in tensors.entries(file)}


def _layered(model: Any, settings: Any, base: BaseModel) -> Any:
    from peft import get_peft_model

    try:
        return get_peft_model(model, settings, low_cpu_mem_usage=True)
    except Exception as error:  # as above: a base of known kinds on the meta device takes any settings that PEFT takes
        what = f"the adapter does not fit {base.directory}: {first_line(error)}"
        raise ModelError(what, hint="is it of this base?") from error


def _keys(layered: Any) -> dict[str, Any]:
    """{key in the adapter's file: parameter on the meta device}."""
    from peft import get_peft_model_state_dict

    named = dict(layered.named_parameters(remove_duplicate=False))
    return get_peft_model_state_dict(layered, state_dict=named, save_embedding_layers=False)


def _refuse_missing(
    adapter: Path, base: BaseModel, *, expected: Mapping[str, Any], files: Mapping[str, tensors.Entry]
) -> None:
    wrong = [f"{key} is missing" for key in expected if key not in files]
    wrong += [
        f"{key} is {list(files[key].shape)}, and the base needs {list(each.shape)}"
        for key, each in expected.items()
        if key in files and files[key].shape[1:] != tuple(each.shape)[1:]
    ]
    wrong += [
        f"{key} is {list(files[key].shape)}, and the base needs {list(each.shape)}"
        for key, each in expected.items()
        if key in files and ".lora_" in key and files[key].shape[:1] != tuple(each.shape)[:1]
    ]
    if wrong:
        raise ModelError(
            f"the adapter in {adapter} does not fit {base.directory}: {len(wrong)} tensors are missing or of another "
            f"shape, first {wrong[0]}",
            hint="is the adapter of this base? copy its directory again where it is",
        )


def _resolved(layered: Any, keys: Mapping[str, Any]) -> tuple[dict[str, Delta], dict[str, str], set[str]]:
    """LoRA's layers by weight, replaced weights with their key, and the keys that are used."""
    from peft.tuners.lora import Embedding, Linear, LoraLayer

    key_of = {id(each): key for key, each in keys.items()}
    deltas: dict[str, Delta] = {}
    for name, module in layered.named_modules():
        if isinstance(module, LoraLayer):
            if not isinstance(module, (Linear, Embedding)):
                kind = type(module).__name__
                raise ModelError(f"{original(name)} has LoRA of kind {kind}, which is not merged", hint=SERVE)
            parts = {key_of[id(each)]: (owner, own) for owner, own, each in _own(module) if id(each) in key_of}
            deltas[f"{original(name)}.weight"] = Delta(layer=module, parts=parts)
    in_layers = {key for delta in deltas.values() for key in delta.parts}
    named = layered.named_parameters(remove_duplicate=False)
    whole = {original(name): key_of[id(each)] for name, each in named if key_of.get(id(each)) not in {None, *in_layers}}
    return deltas, whole, in_layers | set(whole.values())


def _own(layer: Any) -> Iterator[tuple[Any, str, torch.nn.Parameter]]:
    """(module, key, parameter) of a LoRA layer without its base layer."""
    for name, module in layer.named_modules():
        if name.partition(".")[0] != "base_layer":
            for key, each in module.named_parameters(recurse=False):
                yield module, key, each


def _tied(model: Any) -> tuple[frozenset[str], ...]:
    """Groups of names that are one parameter."""
    groups: dict[int, set[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(each), set()).add(name)
    return tuple(frozenset(group) for group in groups.values() if len(group) > 1)
