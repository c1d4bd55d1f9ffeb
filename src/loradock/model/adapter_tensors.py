"""What each tensor of an adapter's file is to its base: one table, which merging, answering and export ask.

Beside LoRA's own tensors PEFT writes whole ones: modules to save, trained biases, rows of single tokens, and the
embeddings where they are targets or were resized, each under the name that a wrapper of PEFT gives it
(`peft.utils.save_and_load.get_peft_model_state_dict`; 0.18 to 0.21 write the same forms).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.errors import ModelError
from loradock.model import architecture
from loradock.model.adapter_files import HINT, WEIGHTS, settings_of, shapes_of

PREFIX = "base_model.model."
ADAPTER = "default"
TRAINED_COPY = (f".modules_to_save.{ADAPTER}.", ".modules_to_save.")
"""A module that is saved whole. A file has it without this part, and with it, too, where it saves the embeddings."""
BEFORE_TRAINING = ".original_module."
"""The same module as it was: it answers only while the adapter is switched off."""
BELOW = (".token_adapter.base_layer.", ".base_layer.")
"""The base's own values below trained rows, or below LoRA; trained ones where it is a bias."""
TRAINED_ROWS = ".token_adapter.trainable_tokens_delta"
AT_RANDOM, AT_ZERO = re.compile(r"\.lora_(A|embedding_B)\b"), re.compile(r"\.lora_(B|embedding_A)\b")
"""How the two factors of LoRA begin; it changes nothing as long as the second is zero."""
NO_TEXT = "their parts of the base read images, audio or video, and no text"


@dataclass(frozen=True, kw_only=True)
class AdapterTensors:
    """Which tensors of the file are what. Weights are named as in the base, tensors of the file by their keys.

    `trained`: PEFT's parameter of each key that it saves as trained. `whole`: weights whose values are the file's, with
    the key, whether they were trained or are what LoRA is added to. `beside`: tensors of parts that are left out.
    """

    trained: Mapping[str, Any]
    whole: Mapping[str, str]
    beside: tuple[str, ...]


def original(name: str) -> str:
    """The base's own name of a parameter of a PEFT model, or of a key of an adapter's file."""
    name = name.removeprefix(PREFIX)
    for part in (*BELOW, BEFORE_TRAINING, *TRAINED_COPY):
        name = name.replace(part, ".")
    return name


def fit_rows(model: Any, shapes: Mapping[str, tuple[int, ...]], *, adapter: Path) -> frozenset[str]:
    """Give a bare model the rows of embedding and head that the file has; the names of weights that it has to hold so.

    `shapes`: of the file's tensors by key. ModelError where embedding and head are of different lengths.
    """
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    names = {f"{name}.weight" for name, module in model.named_modules() if id(module) in ends}
    rows = {original(key): shape[0] for key, shape in shapes.items() if shape and original(key) in names}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {count:,} rows" for name, count in sorted(rows.items()))
        raise ModelError(f"embedding and head of {adapter} are of different lengths: {counts}", hint=HINT)
    if not rows or (count := next(iter(rows.values()))) == model.get_input_embeddings().weight.shape[0]:
        return frozenset()
    model.resize_token_embeddings(count, mean_resizing=False)
    return frozenset(names)


def read(
    layered: Any, keys: Collection[str], *, adapter: Path, base: Path | str, filled: Collection[str] = ()
) -> AdapterTensors:
    """What the tensors of an adapter's file are to a base with PEFT's layers on it.

    `keys`: the file's; `filled`: see `fit_rows`. ModelError where a trained tensor is missing, or one is left over that
    nothing would use.
    """
    from peft import get_peft_model_state_dict

    parameters = dict(layered.named_parameters(remove_duplicate=False))
    trained = get_peft_model_state_dict(layered, state_dict=parameters, save_embedding_layers=False)
    if missing := [key for key in trained if key not in keys]:
        raise _missing(missing, adapter=adapter, base=base)
    key_of = {id(tensor): key for key, tensor in trained.items()}
    unquantised_parts = {
        original(name): key_of[id(parameter)]
        for name, parameter in parameters.items()
        if id(parameter) in key_of and ".lora_" not in name and TRAINED_ROWS not in name
    }
    names = {original(name) for name in parameters}
    modules = {name for name, _ in layered.named_modules()}
    absent = beside(layered, keys)
    accounted = {*trained, *absent}
    own_names = {key: original(key) for key in keys if key not in accounted and not _is_repeated(key, keys, modules)}
    if leftover := sorted(key for key, name in own_names.items() if name not in names):
        raise ModelError(
            f"{len(leftover)} tensors of {adapter / WEIGHTS} belong to nothing in {base}, first {leftover[0]}",
            hint="is the adapter of this base? loradock reads LoRA, DoRA, whole modules, biases and single tokens",
        )
    own_key = {name: key for key, name in own_names.items()}
    for group in tied(layered):
        shared_key = next((own_key[name] for name in sorted(group) if name in own_key), None)
        unquantised_parts |= {
            name: own_key.get(name, shared_key) for name in group if shared_key and name not in unquantised_parts
        }
    unquantised_parts = own_key | unquantised_parts
    if lost := sorted(set(filled) - unquantised_parts.keys()):
        raise ModelError(
            f"{adapter / WEIGHTS} has another vocabulary than {base}, and no {lost[0]}, whose new rows are lost",
            hint="save it again where it was trained: model.save_pretrained(DIR, save_embedding_layers=True)",
        )
    return AdapterTensors(trained=trained, whole=unquantised_parts, beside=absent)


def beside(layered: Any, keys: Iterable[str]) -> tuple[str, ...]:
    """Those of an adapter's tensors that are of parts which the model was opened without; no text reaches these."""
    parts = tuple(f"{part.name}." for part in architecture.left_out(layered.get_base_model()))
    return tuple(sorted(key for key in keys if parts and original(key).startswith(parts)))


def changing(file: Path, keys: Iterable[str]) -> tuple[str, ...]:
    """Those of the tensors by which their module differs from the base's: all but LoRA that is still zero."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return tuple(
            key
            for key in keys
            if not AT_RANDOM.search(key) and not (AT_ZERO.search(key) and not bool(opened.get_tensor(key).any()))
        )


def passed_over(layered: Any, adapter: Path) -> str | None:
    """What to say of an adapter's tensors that answers do not come from; None where all of them are used."""
    keys = beside(layered, shapes_of(adapter))
    if not keys:
        return None
    trained = len(changing(adapter / WEIGHTS, keys))
    how = f"{trained} of them trained" if trained else "none of them trained"
    return f"{len(keys)} tensors of {adapter / WEIGHTS} are passed over ({how}): {NO_TEXT}"


def tied(model: Any) -> tuple[frozenset[str], ...]:
    """Groups of the base's names that are one parameter."""
    groups: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), set()).add(original(name))
    return tuple(frozenset(group) for group in groups.values() if len(group) > 1)


def _is_repeated(key: str, keys: Collection[str], modules: Collection[str]) -> bool:
    """Whether the adapter answers the same without this tensor, which PEFT saves besides."""
    if BEFORE_TRAINING in key:
        return True
    if any(part in key for part in TRAINED_COPY):
        return PREFIX + original(key) in keys
    # Rows of a head that is tied to the embedding: trained as the embedding's, which the file has, too.
    return key.endswith(TRAINED_ROWS) and key.rpartition(".")[0] in modules


def _missing(missing: list[str], *, adapter: Path, base: Path | str) -> ModelError:
    what = f"the adapter in {adapter} does not fit {base}: {len(missing)} tensors are missing, first {missing[0]}"
    if all(key.endswith(".bias") for key in missing):
        return ModelError(
            f"{what}: PEFT 0.18 and older lose the biases of bias=lora_only when they save",
            hint="train it again with bias=none, or save it again by PEFT 0.19 or later where it was trained",
        )
    if getattr(settings_of(adapter), "ensure_weight_tying", False):
        hint = 'if PEFT 0.18 wrote it, which did not tie LoRA: set "ensure_weight_tying": false in adapter_config.json'
        return ModelError(what, hint=hint)
    return ModelError(what, hint="is the adapter of this base? copy its directory again where it is")
