"""What an adapter does to each weight of its base, as PEFT itself resolves it, without a weight in memory.

The base is built on the meta device and PEFT puts its layers on it: patterns of targets, ranks and alphas, rank
stabilisation, DoRA and orientation are PEFT's own answers. A layer's tensors come in when it is merged.
"""

from __future__ import annotations

import copy
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.config.sections.model import ModelConfig
from loradock.errors import InputMissing, ModelError
from loradock.model import adapter_tensors, load, opening, patterns, reward_head
from loradock.model.adapter_files import HINT, check
from loradock.model.adapter_tensors import ADAPTER, AdapterTensors, original
from loradock.model.experts import layout
from loradock.model.patches import BUILDING
from loradock.model.source import BaseModel
from loradock.model.spread import skeleton
from loradock.text.terminal import first_line
from loradock.use.merge import tensors

if TYPE_CHECKING:
    import torch

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
SERVE = "serve the adapter beside its base instead"
PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base as it was published."""


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A PEFT layer over one weight, and which of the file's tensors are its own: {file key: (module, parameter)}."""

    layer: Any
    parts: Mapping[str, tuple[Any, str]]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Trained rows of one weight: the file's key, and where they go."""

    key: str
    places: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """Names are the model's own (`model.layers.0.self_attn.q_proj.weight`).

    `whole`: weights whose values are the adapter's, with the file's key; `deltas`: weights with LoRA, on top of these
    or of the base's; `rows`: weights with trained rows. `tied`: groups of names that are one tensor in the base.
    `files`: the adapter's tensors by key. `names`: all names of the base, with their shapes. `embedding`: the name of
    the input embedding. `beside`: tensors of LoRA that was never trained, on parts of the base that read no text.
    `replaced`: how the names of the output head's weights begin, where a reward model's head is in its place.
    """

    deltas: Mapping[str, Delta]
    whole: Mapping[str, str]
    rows: Mapping[str, Rows]
    tied: tuple[frozenset[str], ...]
    files: Mapping[str, tensors.Entry]
    names: Mapping[str, tuple[int, ...]]
    embedding: str
    beside: tuple[str, ...]
    replaced: frozenset[str] = frozenset()

    @property
    def is_reward(self) -> bool:
        """Whether the result scores answers."""
        return bool(self.replaced)

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
    files = _files(adapter / WEIGHTS)
    model = empty(base)
    tied = adapter_tensors.tied(model)
    filled = opening.fit(model, checked, {key: file.shape for key, file in files.items()}, adapter=adapter)
    patterns.check(adapter, checked, (name for name, _ in model.named_modules()))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    name_of = {id(module): name for name, module in model.named_modules()}
    embedding, head = name_of[id(model.get_input_embeddings())], name_of.get(id(model.get_output_embeddings()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tied targets and orientation: both are merged as PEFT computes them
        layered = _layered(model, settings, base)
    tensors_found = adapter_tensors.read(layered, files, adapter=adapter, base=base.directory, filled=filled)
    _refuse_beside(adapter, base, tensors_found.beside)
    _refuse_misfit(adapter, base, tensors_found, files=files, shapes=shapes)
    return Adapted(
        deltas=_deltas(layered, tensors_found.trained),
        whole=tensors_found.whole,
        rows=_rows(layered, tensors_found.trained),
        tied=tied,
        files=files,
        names=shapes,
        embedding=f"{embedding}.weight",
        beside=tensors_found.beside,
        replaced=frozenset([f"{head}."] if head and reward_head.is_head_of(checked) else ()),
    )


def empty(base: BaseModel) -> Any:
    """The base on the meta device. Raises ModelError where transformers cannot build it."""
    import torch

    for patch in BUILDING:
        patch(base.config)
    copied_base = replace(base, config=copy.deepcopy(base.config))  # where rows are added, its vocabulary grows
    return skeleton(copied_base, dtype=torch.float32, attention="eager")


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
        else "an adapter of replicated layers (layer_replication)" if settings.layer_replication
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


def _refuse_beside(adapter: Path, base: BaseModel, keys: Iterable[str]) -> None:
    """ModelError where the adapter changes a part of the base that is copied as it is."""
    if changing := adapter_tensors.changing(adapter / WEIGHTS, keys):
        cls = type(empty(base)).__name__
        program = (
            f"from peft import PeftModel; from transformers import {cls} as Base; "
            f"PeftModel.from_pretrained(Base.from_pretrained({str(base.directory)!r}), {str(adapter)!r})"
            ".merge_and_unload().save_pretrained('merged')"
        )
        raise ModelError(
            f"{adapter} changes parts of the base that read no text ({len(changing)} tensors, first {changing[0]}); "
            "loradock merges the language model alone",
            hint=f"merge the weights by plain PEFT: python -c {shlex.quote(program)}",
        )


def _refuse_misfit(
    adapter: Path,
    base: BaseModel,
    tensors_found: AdapterTensors,
    *,
    files: Mapping[str, tensors.Entry],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """ModelError for tensors of the file of another shape than the base's, or than PEFT's layers on it."""
    expected_shapes = {
        key: tuple(tensor.shape)
        for key, tensor in tensors_found.trained.items()
        if key not in tensors_found.whole.values()
    }
    expected_shapes |= {key: shapes[name] for name, key in tensors_found.whole.items()}
    wrong = [
        f"{key} is {list(files[key].shape)}, and the base needs {list(shape)}"
        for key, shape in expected_shapes.items()
        if files[key].shape != shape
    ]
    if wrong:
        raise ModelError(
            f"the adapter in {adapter} does not fit {base.directory}: {len(wrong)} tensors are of another shape, first "
            f"{wrong[0]}",
            hint="is the adapter of this base? copy its directory again where it is",
        )


def _deltas(layered: Any, trained: Mapping[str, Any]) -> dict[str, Delta]:
    """LoRA's layers by weight."""
    from peft.tuners.lora import Embedding, Linear, LoraLayer

    key_of = {id(tensor): key for key, tensor in trained.items()}
    deltas: dict[str, Delta] = {}
    for name, layer in layered.named_modules():
        if isinstance(layer, LoraLayer):
            module: Any = layer
            parameter_of_all = getattr(module, "parameter_name", "")
            if not isinstance(module, (Linear, Embedding)) and not (parameter_of_all and module.num_experts > 1):
                kind = type(module).__name__
                raise ModelError(f"{original(name)} has LoRA of kind {kind}, which is not merged", hint=SERVE)
            parts = {
                key_of[id(parameter)]: (owner, key) for owner, key, parameter in _own(module) if id(parameter) in key_of
            }
            weight = f"{original(f'{name}.')}{parameter_of_all or 'weight'}"
            deltas[weight] = Delta(layer=module, parts=parts)
    return deltas


def _rows(layered: Any, trained: Mapping[str, Any]) -> dict[str, Rows]:
    """Trained rows by weight; of a head that is tied to the embedding, the embedding's."""
    from peft.tuners.trainable_tokens import TrainableTokensLayer

    key_of = {id(tensor): key for key, tensor in trained.items()}
    rows_found: dict[str, Rows] = {}
    for name, module in layered.named_modules():
        if isinstance(module, TrainableTokensLayer):
            source: Any = module.tied_adapter or module
            key = key_of[id(source.trainable_tokens_delta[ADAPTER])]
            places = tuple(int(index) for index in source.token_indices[ADAPTER])
            rows_found[f"{original(name).removesuffix('.token_adapter')}.weight"] = Rows(key=key, places=places)
    return rows_found


def _own(layer: Any) -> Iterator[tuple[Any, str, torch.nn.Parameter]]:
    """(module, key, parameter) of a LoRA layer without its base layer."""
    for name, module in layer.named_modules():
        if name.partition(".")[0] != "base_layer":
            for key, parameter in module.named_parameters(recurse=False):
                yield module, key, parameter


def quantised_weights(base: BaseModel, model_config: ModelConfig, dtype: torch.dtype) -> dict[str, bool]:
    """The weights that transformers quantises, as its own quantiser chooses; True for those of Conv1D."""
    from bitsandbytes.nn import Linear4bit
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.auto import AutoHfQuantizer

    model = empty(base)
    quantiser: Any = AutoHfQuantizer.from_config(load.quantization(model_config, dtype), pre_quantized=False)
    quantiser.preprocess_model(model=model, device_map={"": "cpu"})
    linears = {
        f"{name}.weight": issubclass(getattr(module, "source_cls", type(None)), Conv1D)
        for name, module in model.named_modules()
        if isinstance(module, Linear4bit)
    }
    return linears | {matrices.name: False for matrices in layout.matrices(model)}
