"""A PeftModel cut over the processes of a run by FSDP2, and the proof that it is.

Each decoder layer is a group of parameters of its own (Zhao et al. 2023, per-parameter sharding as in torchtitan): its
NF4 weights, norms and LoRA matrices are gathered before its forward and its backward, and given back after. Embedding
and head are groups of their own; the rest, a few norms, is the root's. Gradients are reduced into the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from loradock.errors import EnvironmentUnfit
from loradock.model import reward_head
from loradock.model.experts.layout import PART
from loradock.model.spread import GUARD, decoder_layers, lay_experts_out, own_parameters

EXCHANGES = ("pre_forward", "pre_backward", "post_backward", "finalize_backward")
"""Methods of a group of FSDP's in which it asks for what others have, and waits until it has come."""
HINT = "report this with the versions in run.json; --set train.parallel=ddp, where the whole model fits a GPU"


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one process holds: bytes of its parts, of all parameters whole, and of NF4's scales, which all hold."""

    local_bytes: int
    whole_bytes: int
    scale_bytes: int
    groups: int
    processes: int

    @property
    def part(self) -> float:
        """The share of the parameters' bytes."""
        return round(self.local_bytes / self.whole_bytes, 3)

    def __str__(self) -> str:
        return (
            f"this process holds {self.local_bytes / 2**20:,.1f} of {self.whole_bytes / 2**20:,.1f} MiB of parameters "
            f"in {self.groups} groups, and {self.scale_bytes / 2**20:,.1f} MiB of NF4's scales, which are on each of "
            f"the {self.processes}"
        )


def shard(model: Any, *, cpu_offload: bool) -> Share:
    """Cut the model up in place, over all processes; its weights are stand-ins (`model.spread`), its adapter is whole.

    `cpu_offload`: the decoder layers' parts live in pinned host memory. Raises EnvironmentUnfit where the model did not
    come out sharded.
    """
    mesh = torch.distributed.init_device_mesh(device_of(model).type, (torch.distributed.get_world_size(),))
    lay_experts_out(model)
    parts = take_parts(model)
    whole, head, embedding = model.get_base_model(), model.get_output_embeddings(), model.get_input_embeddings()
    offload = CPUOffloadPolicy() if cpu_offload else OffloadPolicy()
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, offload_policy=offload)
    if head.weight is not embedding.weight:  # tied ones stay with the root, which both are below
        fully_shard(embedding, mesh=mesh, reshard_after_forward=True)
        fully_shard(head, mesh=mesh, reshard_after_forward=True)
    if scalar_head := reward_head.of(model):  # the root's stay whole after a pass without gradients
        fully_shard(scalar_head, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    put_parts(model, parts)
    getattr(whole, GUARD).remove()
    return check(model)


def device_of(model: Any) -> torch.device:
    """The device that the model computes on."""
    return model.get_input_embeddings().weight.device


def watch_exchanges(model: Any, exchanging: Callable[[], AbstractContextManager[None]]) -> None:
    """Have every group of a sharded model gather its weights and reduce its gradients inside of `exchanging()`."""
    for module in model.modules():
        group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
        for name in EXCHANGES if group else ():
            setattr(group, name, inside(exchanging, getattr(group, name)))


def inside(entered: Callable[[], AbstractContextManager[None]], method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, each call of it inside of `entered()`."""

    def wrapped(*arguments: Any, **more: Any) -> Any:
        with entered():
            return method(*arguments, **more)

    return wrapped


def take_parts(model: Any) -> dict[str, torch.Tensor]:
    """This process's parts by the names of their weights, which become empty (meta) ones of the same shape."""
    parts: dict[str, torch.Tensor] = {}
    emptied: dict[int, torch.nn.Parameter] = {}
    for name, module, key, parameter in list(own_parameters(model)):
        part = getattr(parameter, PART, None)
        if part is None:
            continue
        if id(parameter) not in emptied:
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            emptied[id(parameter)] = torch.nn.Parameter(empty, requires_grad=False)
        parts[name] = part
        module._parameters[key] = emptied[id(parameter)]
    return parts


def put_parts(model: Any, parts: dict[str, torch.Tensor]) -> None:
    """Give each sharded parameter its part, where it lies; FSDP takes up what it finds before its first forward."""
    make: Any = DTensor  # DTensor.from_local would move a part from host memory to the GPU
    filled: dict[int, torch.nn.Parameter] = {}
    for name, module, key, parameter in list(own_parameters(model)):
        if name not in parts or not isinstance(parameter, DTensor):
            continue
        if id(parameter) not in filled:
            sharded = make(parts[name], parameter._spec, requires_grad=False)
            filled[id(parameter)] = torch.nn.Parameter(sharded, requires_grad=False)
        module._parameters[key] = filled[id(parameter)]


def check(model: Any) -> Share:
    """How much of the model this process holds. EnvironmentUnfit where it holds more than its part.

    A library that cannot shard here (accelerate's FSDP on a CPU) gives back a replicated model and says nothing; its
    losses are right, its memory is not.
    """
    count = torch.distributed.get_world_size()
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise replaced("DistributedDataParallel, which keeps the whole model on every process")
    layers = decoder_layers(model)
    plain = sum(not isinstance(layer, FSDPModule) for layer in layers)
    if plain:
        raise replaced(f"{plain} of {len(layers)} decoder layers are no FSDP modules: every process keeps them whole")
    parameters = dict(model.named_parameters())
    whole = [name for name, parameter in parameters.items() if not isinstance(parameter, DTensor)]
    if whole:
        raise replaced(f"{len(whole)} parameters are no DTensors ({whole[0]}): every process keeps them whole")
    local = sum(bytes_of(parameter.to_local()) for parameter in parameters.values())
    most = sum(largest_part(parameter, count) for parameter in parameters.values())
    if local > most:
        raise replaced(f"this process holds {local:,} bytes, and its part has at most {most:,}")
    return Share(
        local_bytes=local,
        whole_bytes=sum(bytes_of(parameter) for parameter in parameters.values()),
        scale_bytes=scale_bytes(model),
        groups=sum(isinstance(module, FSDPModule) for module in model.modules()),
        processes=count,
    )


def replaced(what: str) -> EnvironmentUnfit:
    """The error of a mode that was asked for and silently replaced by another."""
    return EnvironmentUnfit(f"fsdp was decided on, and the model did not come out sharded: {what}", hint=HINT)


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of its elements."""
    return tensor.numel() * tensor.element_size()


def largest_part(parameter: torch.Tensor, count: int) -> int:
    """Bytes of the largest part of a parameter that is cut by rows."""
    rows = parameter.shape[0] if parameter.dim() else 1
    return math.ceil(rows / count) * bytes_of(parameter) // max(1, rows)


def scale_bytes(model: Any) -> int:
    """Bytes of the NF4 scales of all layers, which are no parameters."""
    states = [state for module in model.modules() if (state := getattr(module, "quant_state", None)) is not None]
    return sum(bytes_of(state.absmax) + (bytes_of(state.state2.absmax) if state.nested else 0) for state in states)
