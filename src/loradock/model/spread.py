"""A base whose weights are spread over the processes of a run: each reads a matrix, quantises it, and keeps its part.

No process ever holds the model, neither on its GPU nor in memory of its own: files are mapped, so that all processes
of a machine read the same pages, and one matrix at a time is made. Until the engine has put the parts in their
places, a weight is a stand-in of the right shape, dtype and device that takes no memory; using one raises.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loradock.config.sections.model import ModelConfig
from loradock.errors import EnvironmentUnfit
from loradock.model import architecture
from loradock.model.experts import layout, loading
from loradock.model.experts.layout import PART
from loradock.model.source import reading_config
from loradock.model.weight_files import WeightFiles

if TYPE_CHECKING:
    import torch

    from loradock.model.experts.column import Column
    from loradock.model.experts.storage import NF4Experts
    from loradock.model.source import BaseModel

COLUMN = "column_of_the_parts"
GUARD = "guard_of_stand_ins"


def read(
    base: BaseModel,
    model_config: ModelConfig,
    *,
    dtype: torch.dtype,
    storage: torch.dtype,
    attention: str,
    device: str,
    kept_on: str,
) -> Any:
    """The base model with this process's part of each weight. Parts are what torch.chunk cuts along dimension 0.

    `dtype` is that of weights which are not quantised, but for those that transformers keeps in 32 bits; `storage` that
    of the numbers in which NF4 lies (FSDP takes floating-point parameters only). Matrices are quantised on `device`, a
    mixture's expert by expert; parts of decoder layers are kept on `kept_on`. NF4's scales of linear layers stay whole
    on every process. Raises ModelError where the files do not hold the model's weights by its own names.
    """
    import torch.distributed

    from loradock.model.experts.storage import NF4Experts

    count, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    model = skeleton(base, dtype=dtype, attention=attention)
    dtypes = dtypes_of(model, dtype)
    if model_config.storage.is_quantised:
        make_quantised(model, model_config, dtype=dtype, storage=storage)
    layers = {id(module) for layer in decoder_layers(model) for module in layer.modules()}
    placed: dict[int, torch.nn.Parameter] = {}
    with WeightFiles(base, model) as files:
        for name, module, key, parameter in own_parameters(model):
            if id(parameter) not in placed:
                place = Place(count=count, rank=rank, device=kept_on if id(module) in layers else device)
                if model_config.storage.is_quantised and loading.is_of_experts(model, name):
                    experts = (expert.to(device=device, dtype=dtype) for expert in files.experts(name, parameter.shape))
                    weights = NF4Experts.quantised(experts, double_quant=model_config.double_quant)
                    placed[id(parameter)] = stand_in_of_experts(weights, storage=storage, place=place)
                else:
                    value = files.read(name, shape=parameter.shape).to(device=device, dtype=dtypes[name])
                    placed[id(parameter)] = stand_in(module, key, value, place=place)
            module._parameters[key] = placed[id(parameter)]
        for prefix, module in model.named_modules():
            for key, buffer in module.named_buffers(recurse=False):
                name = f"{prefix}.{key}" if prefix else key
                is_read = key not in module._non_persistent_buffers_set and files.has(name)
                value = files.read(name, shape=buffer.shape) if is_read else buffer
                module._buffers[key] = value.to(device=device, dtype=dtypes[name])
    guard = model.get_input_embeddings().register_forward_pre_hook(refuse)
    setattr(model, GUARD, guard)
    return model


def skeleton(base: BaseModel, *, dtype: torch.dtype, attention: str) -> Any:
    """The model without weights (on the meta device), its buffers computed."""
    from accelerate import init_empty_weights

    with (
        init_empty_weights(include_buffers=False),
        reading_config(base.directory, "describes a model that transformers cannot build"),
    ):
        model = architecture.build(
            base.config, trust_remote_code=base.trust_remote_code, dtype=dtype, attn_implementation=attention
        )
    model.tie_weights()  # each weight was made again when it was emptied
    return model


def dtypes_of(model: Any, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """{name: dtype in which transformers loads it} of a bare model's weights and buffers; some stay in 32 bits."""
    from transformers.core_model_loading import build_glob_alternation

    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    dtypes = {name: each.dtype for name, each in tensors}
    plan = model._get_dtype_plan(dtype)
    if plan:
        pattern, plan_of_group, _ = build_glob_alternation(list(plan))
        matches = {name: pattern.search(name) for name in dtypes}
        dtypes |= {name: plan[plan_of_group[match.lastgroup]] for name, match in matches.items() if match}
    return dtypes


def make_quantised(model: Any, model_config: ModelConfig, *, dtype: torch.dtype, storage: torch.dtype) -> None:
    """Put an empty NF4 layer in the place of every linear layer but the output head and routers."""
    import torch
    from bitsandbytes.nn import Linear4bit

    head, routers = model.get_output_embeddings(), layout.routers(model)
    for name, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and module is not head and name not in routers:
            empty = Linear4bit(
                module.in_features,
                module.out_features,
                bias=module.bias is not None,
                compute_dtype=dtype,
                compress_statistics=model_config.double_quant,
                quant_type=model_config.storage.quant_type,
                quant_storage=storage,
                device="meta",
            )
            model.set_submodule(name, empty)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a part lies: with which of `count` processes, on which device."""

    count: int
    rank: int
    device: str


def stand_in(module: Any, key: str, value: torch.Tensor, *, place: Place) -> torch.nn.Parameter:
    """A parameter like the whole weight that takes no memory, with this process's part of it."""
    import torch
    from bitsandbytes import nn

    if isinstance(module, nn.Linear4bit) and key == "weight":
        make: Any = nn.Params4bit
        empty: Any = module.weight
        kind = {"requires_grad": False, "quant_type": empty.quant_type, "quant_storage": module.quant_storage}
        packed = make(value, compress_statistics=empty.compress_statistics, **kind).to(value.device)
        module.quant_state = packed.quant_state
        value = packed.data
        parameter = make(like(value), quant_state=module.quant_state, bnb_quantized=True, **kind)
    else:
        parameter = torch.nn.Parameter(like(value), requires_grad=False)
    setattr(parameter, PART, part_of(value, count=place.count, rank=place.rank).to(place.device))
    return parameter


def stand_in_of_experts(weights: NF4Experts, *, storage: torch.dtype, place: Place) -> torch.nn.Parameter:
    """The same for the experts of a layer: the part is one of the column in which they lie (`model.experts.column`)."""
    import torch

    from loradock.model.experts.column import Column

    lies = Column.of(weights, storage=storage)
    parameter = torch.nn.Parameter(lies.stand_in(weights.packed.device), requires_grad=False)
    setattr(parameter, PART, part_of(lies.filled(weights), count=place.count, rank=place.rank).to(place.device))
    setattr(parameter, COLUMN, lies)
    return parameter


def lay_experts_out(model: Any, *, comes_again: bool = False) -> None:
    """Put columns in the place of experts whose parts are here, in stand-ins: the shape that an engine cuts.

    `comes_again`: see `Column`.
    """
    import torch

    from loradock.model.experts import column

    for _, module, key, parameter in list(own_parameters(model)):
        lies: Column | None = getattr(parameter, COLUMN, None)
        if lies is not None:
            column.put(module, key, replace(lies, comes_again=comes_again))
            part = getattr(parameter, PART)
            whole = torch.zeros((), dtype=lies.storage, device=parameter.device).expand(lies.numbers, 1)
            module._parameters[key] = torch.nn.Parameter(whole, requires_grad=False)
            setattr(module._parameters[key], PART, part)


def part_of(value: torch.Tensor, *, count: int, rank: int) -> torch.Tensor:
    """A copy of the rows that fall to one process; none where there are fewer rows than processes."""
    parts = value.detach().chunk(count, dim=0)
    return parts[rank].clone() if rank < len(parts) else value.new_empty((0, *value.shape[1:]))


def gathered(part: torch.Tensor, *, shape: torch.Size) -> torch.Tensor:
    """The whole tensor, on the device of `part`, of the rows of every process. Every process takes part."""
    import torch.distributed

    count = torch.distributed.get_world_size()
    rows = math.ceil(shape[0] / count)
    padded = part.new_zeros((rows, *shape[1:]))
    padded[: len(part)] = part
    parts = [torch.empty_like(padded) for _ in range(count)]
    torch.distributed.all_gather(parts, padded)
    return torch.cat(parts)[: shape[0]]


def like(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, dtype and device whose elements are all one and the same."""
    return value.new_zeros(()).expand(value.shape)


def own_parameters(model: Any) -> Iterator[tuple[str, Any, str, torch.nn.Parameter]]:
    """(dotted name, module, key, parameter) of every parameter, tied ones each time they come up."""
    for prefix, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            yield f"{prefix}.{key}" if prefix else key, module, key, parameter


def decoder_layers(model: Any) -> list[Any]:
    """The decoder's layers, of a causal LM with or without adapters around it."""
    base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
    return list(base_model.get_decoder().layers)


def refuse(*_: Any) -> None:
    """The forward hook while weights are stand-ins."""
    raise EnvironmentUnfit(
        "the weights are sharded over the ranks, and only training gathers them",
        hint="--set train.parallel=ddp, where the whole model fits a GPU",
    )
