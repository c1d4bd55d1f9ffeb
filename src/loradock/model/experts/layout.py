"""Where a model's fused experts lie: those that transformers computes by its own interface, which ours is put into.

Its decorator `use_experts_implementation` (transformers 5, `integrations/moe.py`) says of a class of experts how their
matrices lie, and lets another function compute them. A class without it computes experts in a way of its own, and is
served where `OWN` says how its matrices lie (Llama 4, see `model.experts.llama4`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GATED, PLAIN = ("gate_up_proj", "down_proj"), ("up_proj", "down_proj")

COLUMNS = "nf4_columns"
"""Of a module whose experts are cut among processes: how each parameter lies, by its name (`model.experts.column`)."""
PART = "part_of_this_process"
"""Of a parameter that is cut among processes: what this one has read of it (`model.spread`)."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a class of experts keeps its matrices, and what it does with them."""

    has_gate: bool = True
    has_bias: bool = False
    is_transposed: bool = False
    scales_inputs: bool = False
    """The router's weight is multiplied with what goes into an expert, not with what comes out of it."""

    @property
    def keys(self) -> tuple[str, str]:
        """The names of a module's two parameters: into the experts' inner width, and out of it."""
        return GATED if self.has_gate else PLAIN


OWN = {"Llama4TextExperts": Layout(is_transposed=True, scales_inputs=True)}
"""By the name of the class: transformers' classes of experts that do not use its interface."""
DECIDING = ("Llama4Router",)
"""Names of classes that are linear layers and answer with more than their product."""


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """One matrix of every expert of a layer: a parameter [experts, rows, columns], by its dotted name.

    `is_transposed`: it is [experts, columns, rows], where rows are outputs and columns inputs.
    """

    name: str
    module: Any
    key: str
    parameter: torch.nn.Parameter
    is_transposed: bool

    @property
    def experts(self) -> int:
        """How many experts the layer has."""
        return self.parameter.shape[0]

    @property
    def outputs(self) -> int:
        """Rows of one expert's matrix as a linear layer has them."""
        return self.parameter.shape[2 if self.is_transposed else 1]

    @property
    def inputs(self) -> int:
        """Columns of one expert's matrix as a linear layer has them."""
        return self.parameter.shape[1 if self.is_transposed else 2]


def is_served(module: Any) -> bool:
    """Whether a module is experts that are computed here, of matrices that are 3-D parameters."""
    layout = _described(module)
    if layout is None:
        return False
    parameters, columns = dict(module.named_parameters(recurse=False)), getattr(module, COLUMNS, {})
    return all(key in columns or (key in parameters and parameters[key].dim() == 3) for key in layout.keys)


def of(module: Any) -> Layout:
    """How a served module's matrices lie."""
    layout = _described(module)
    assert layout is not None
    return layout


def _described(module: Any) -> Layout | None:
    """What the interface, or `OWN`, says of a module; None where neither knows it."""
    if hasattr(type(module), "_apply_gate") and hasattr(module, "is_transposed"):
        return Layout(has_gate=module.has_gate, has_bias=module.has_bias, is_transposed=module.is_transposed)
    return next((OWN[each.__name__] for each in type(module).__mro__ if each.__name__ in OWN), None)


def keys(module: Any) -> tuple[str, str]:
    """The names of a served module's two parameters: into the experts' inner width, and out of it."""
    return of(module).keys


def modules(model: Any) -> Iterator[tuple[str, Any]]:
    """(dotted name, module) of every layer's experts."""
    return ((name, module) for name, module in model.named_modules() if is_served(module))


def matrices(model: Any) -> Iterator[Matrices]:
    """Every 3-D parameter of experts, in the model's order."""
    for name, module in modules(model):
        for key in keys(module):
            yield Matrices(
                name=f"{name}.{key}",
                module=module,
                key=key,
                parameter=getattr(module, key),
                is_transposed=of(module).is_transposed,
            )


def biases(model: Any) -> Iterator[torch.nn.Parameter]:
    """Parameters [experts, rows] that are no matrices: the biases of every expert's."""
    for _, module in modules(model):
        if of(module).has_bias:
            yield from (getattr(module, f"{key}_bias") for key in keys(module))


def is_deciding(module: Any) -> bool:
    """Whether a module is a linear layer that answers with more than its product."""
    return type(module).__name__ in DECIDING


ACTIVE = ("num_experts_per_tok", "top_k_experts", "moe_k", "moe_topk", "top_k")
"""What configurations call the number of experts that a token goes to."""


def used_by_a_token(model: Any, matrices: Matrices) -> int:
    """Experts of this layer that a token is multiplied with; all of them where no configuration says how many."""
    configs = (getattr(matrices.module, "config", None), model.config.get_text_config(decoder=True))
    counts = (getattr(config, name, None) for config in configs for name in ACTIVE)
    return min(
        matrices.experts, next((count for count in counts if isinstance(count, int) and count), matrices.experts)
    )


def routers(model: Any) -> tuple[str, ...]:
    """Linear layers that choose among experts: beside these, with an output for each. Most routers are parameters."""
    import torch

    names: list[str] = []
    for name, module in modules(model):
        block, count = name.rpartition(".")[0], getattr(module, keys(module)[0]).shape[0]
        names += [
            f"{block}.{inner}"
            for inner, layer in model.get_submodule(block).named_modules()
            if isinstance(layer, torch.nn.Linear) and layer.out_features == count
        ]
    return tuple(names)
