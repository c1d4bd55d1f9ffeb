"""Layers that mix tokens by more than attention (delta rule, state space, short convolution), and what they cost.

They carry a state, or the window of a convolution, from token to token, and into the next document of a packed row.
transformers computes them by the kernels of other packages where these are installed, else in torch, in float32 and in
chunks. What that costs is counted here, on the meta device: operators, their traffic, and what is kept for backward.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from loradock.catalog import storages
from loradock.errors import ModelError
from loradock.facts import COUNTED_TOKENS, ModelFacts, Recurrence
from loradock.model.whole import quiet

if TYPE_CHECKING:
    import torch

DISTRIBUTIONS = {"fla": "flash-linear-attention"}
"""What a package is installed by, where that is not its own name."""


def of(model: Any, text: Any) -> Recurrence | None:
    """What a model on the meta device, whose text part has the config `text`, has of recurrent layers; None: nothing.

    Its config says of each layer what kind it is, in transformers' own words; where it says nothing, its class says
    whether it keeps a state.
    """
    kinds = getattr(text, "layer_types", None)
    layers = sum(map(_keeps_state, kinds)) if kinds else text.num_hidden_layers * getattr(model, "_is_stateful", False)
    if not layers:
        return None
    mixers_of_model = list(mixers(model))
    packages = [item for _, kernels in mixers_of_model for item in kernels.items()]
    missing = sorted({DISTRIBUTIONS.get(name, name.replace("_", "-")) for name, is_there in packages if not is_there})
    if not mixers_of_model or any(is_there for _, is_there in packages):
        return Recurrence(layers=layers, missing=tuple(missing))
    mixer, hidden = mixers_of_model[0][0], text.hidden_size
    with quiet():
        launches, traffic = _counted(mixer, hidden=hidden)
        kept_values = {name: _kept(mixer, hidden=hidden, dtype=name) for name in ("float32", "bfloat16")}
    return Recurrence(
        layers=layers,
        missing=tuple(missing),
        launches=launches,
        traffic_bytes=traffic,
        kept_bytes=kept_values,
        chunk_tokens=chunk_tokens(mixer),
    )


def chunk_tokens(mixer: Any) -> int:
    """Tokens of a chunk of a mixer's kernels, which fill a document up to whole ones; 1 where they have none.

    It has them itself, or they are the default of a function that its forward calls.
    """
    functions = vars(sys.modules[type(mixer).__module__])
    called = (functions.get(name) for name in inspect.unwrap(type(mixer).forward).__code__.co_names)
    signatures = (inspect.signature(function).parameters for function in called if inspect.isfunction(function))
    defaults = (each["chunk_size"].default for each in signatures if "chunk_size" in each)
    return getattr(mixer, "chunk_size", None) or next((each for each in defaults if isinstance(each, int)), 1)


def _keeps_state(kind: str) -> bool:
    """Whether transformers' cache for a kind of layer holds a state, besides keys and values or in their place."""
    from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, LinearAttentionCacheLayerMixin

    cache = DYNAMIC_LAYER_TYPE_MAPPING.get(kind)
    return cache is not None and issubclass(cache, LinearAttentionCacheLayerMixin)


def mixers(model: Any) -> Iterator[tuple[Any, dict[str, bool]]]:
    """The modules that call a function for which transformers knows a kernel: by package, whether it is there."""
    for module in model.modules():
        functions = vars(sys.modules[type(module).__module__])
        forward = inspect.unwrap(type(module).forward)
        called = forward.__code__.co_names if inspect.isfunction(forward) else ()
        if packages := dict(filter(None, (_package(functions.get(name)) for name in called))):
            yield module, packages


def _package(function: Any) -> tuple[str, bool] | None:
    """The package of a function that transformers replaces by a kernel, and whether it did; None for any other."""
    if not inspect.isfunction(function):
        return None
    variables = inspect.getclosurevars(function).nonlocals
    return (variables["package"], variables["is_new_implementation"]) if "is_new_implementation" in variables else None


def state_spaces(model: Any) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name and source of each Mamba mixer's forward, and its linear layers of which that takes the weights itself.

    It takes them for a fused kernel of mamba_ssm, and of some in torch, too. An adapter there would be passed by.
    """
    for name, module in model.named_modules():
        if hasattr(module, "A_log"):
            source = inspect.getsource(inspect.unwrap(type(module).forward))
            children = (child for child, _ in module.named_children())
            yield name, source, tuple(child for child in children if f"self.{child}.weight" in source)


def check_read_past(facts: ModelFacts, model: Any, *, quantization: str) -> None:
    """Refuse a Mamba whose mixers would take 4-bit numbers for weights, or pass by an adapter."""
    linears, is_quantised = {layer.name for layer in facts.linears}, storages.of(quantization).is_quantised
    has_fused = find_spec("mamba_ssm") is not None
    past = {
        f"{mixer}.{layer}"
        for mixer, source, layers in state_spaces(model)
        for layer in layers
        if has_fused or (".weight @" in source and not (is_quantised and "_is_quantized" in source))
    } & linears
    if not past or (not is_quantised and past.isdisjoint(facts.targets)):
        return
    kinds = {name.rpartition(".")[2] for name in past}
    reached = sorted({layer.name.rpartition(".")[2] for layer in facts.linears} - kinds)
    raise ModelError(
        f"{facts.architecture} does not call its layers {', '.join(sorted(kinds))} but takes their weights: "
        "neither quantised weights nor adapters work there",
        hint=f"--set model.quantization=none --set lora.targets=[{','.join(reached)}]",
    )


def _ran(mixer: Any, *, hidden: int, dtype: torch.dtype) -> Any:
    """The output of a mixer in this dtype for one row."""
    import torch

    states = torch.empty(1, COUNTED_TOKENS, hidden, dtype=dtype, device="meta", requires_grad=True)
    out = mixer(states)
    return out[0] if isinstance(out, tuple) else out


def _frozen(mixer: Any, dtype: torch.dtype) -> Any:
    return copy.deepcopy(mixer).to(dtype).requires_grad_(False).train()


def _counted(mixer: Any, *, hidden: int) -> tuple[int, int]:
    """Operators of forward and backward, and the bytes that they read and write, in bfloat16."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counter(TorchDispatchMode):
        launches = traffic = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if not func.is_view:
                tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
                self.launches += 1
                self.traffic += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            return out

    frozen = _frozen(mixer, torch.bfloat16)
    with Counter() as counter:
        _ran(frozen, hidden=hidden, dtype=torch.bfloat16).sum().backward()
    return counter.launches, counter.traffic


def _kept(mixer: Any, *, hidden: int, dtype: str) -> int:
    """Bytes that one layer keeps for a token from forward to backward, weights left out."""
    import torch

    frozen = _frozen(mixer, getattr(torch, dtype))
    weights = {tensor.untyped_storage()._cdata for tensor in (*frozen.parameters(), *frozen.buffers())}
    tensors_kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in weights:
            tensors_kept[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _ran(frozen, hidden=hidden, dtype=getattr(torch, dtype))
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors_kept.values()) // COUNTED_TOKENS
