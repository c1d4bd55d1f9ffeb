"""What an engine is: the ways of sharing a model that it serves, what it has, and what it cannot do and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loradock.catalog import optimizers

Limit = Literal[
    "decoder", "recurrence", "remote code", "peculiarity", "outlier columns", "changed base", "float16", "compile",
    "whole model", "dora", "modules_to_save", "neftune", "optimizer", "other states", "loss_sum", "loraplus",
    "several ranks", "new tokens", "prequantised",
]  # fmt: skip
"""What a run may ask for that not all engines and ways of sharing have; `plan/obstacles.py` says whether it does."""
Cannot = Mapping[Limit, str]
"""Why not, in the order in which reasons are looked for; `{config}` and `{model}` of a reason are those of the run."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A way in which processes share a model: a value of `train.parallel`.

    `cuts_state`: gradients and optimiser state are cut among them; `cuts_weights`: the frozen weights, too.
    `zero_stage`: DeepSpeed's number for it, 0 where it is not DeepSpeed's.
    """

    name: str
    cuts_state: bool = False
    cuts_weights: bool = False
    zero_stage: int = 0
    cannot: Cannot = field(default_factory=dict[Limit, str])


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What computes the passes and updates of a run; `computed_by`: the module and class in `training/backends/`.

    `title`: its name in a sentence. `modes`: the ways of sharing that it serves, the first where it alone is asked for.
    `reason`: why it is taken, where no other engine serves a mode. `fallback`: the engine in its place, where it cannot
    be used. `former_name`: under which older runs recorded it.

    `dropout_masks`: how it draws those of dropout, where older runs drew others.
    `plans_shapes`: its passes have a token budget, and layers that are recomputed or kept dense by count, which the
    plan chooses by its model of memory and time. `recomputes_any_count`: of layers; otherwise all or none.
    """

    name: str
    title: str
    computed_by: str
    modes: tuple[Mode, ...]
    reason: str = ""
    fallback: str | None = None
    former_name: str | None = None
    dropout_masks: str | None = None
    cannot: Cannot = field(default_factory=dict[Limit, str])
    plans_shapes: bool = False
    recomputes_any_count: bool = False
    always_packs: bool = False
    has_own_kernels: bool = False
    has_cuda_graphs: bool = False
    has_cached_layers: bool = False
    has_compile: bool = False
    shares_prompts: bool = False

    @property
    def is_sharding(self) -> bool:
        """True where it always cuts something of the model among processes, and so needs several."""
        return all(mode.cuts_state for mode in self.modes)

    @property
    def optimizers(self) -> tuple[str, ...]:
        """The values of `train.optimizer` that it has."""
        return optimizers.of_engine(self.name)
