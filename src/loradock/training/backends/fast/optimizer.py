"""AdamW over the flat adapters: one fused update for all of them, and a state that any engine reads.

In a checkpoint the moments are cut into one entry a parameter, in groups with and without weight decay, each in the
order of the model: transformers' trainer lays them out so. With LoRA+ each group is two, that of the A's first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Any

import torch

from loradock.training.backends.fast.adapters import FlatAdapters

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, eq=False)
class Run:
    """Parameters of one group that lie one after the other, as one."""

    flat: torch.nn.Parameter
    start: int


class FlatAdamW(torch.optim.AdamW):
    """Decoupled weight decay (Loshchilov and Hutter 2019) over one vector; the moments are float32.

    `groups`: the parameters by learning rate, in the order of a checkpoint; those of group i have `lr` times
    `lr_ratios[i]`. Each run of a group in the vector is updated as one. `hyperparameters` are torch's.
    """

    def __init__(
        self,
        adapters: FlatAdapters,
        groups: Sequence[Sequence[Any]],
        *,
        lr_ratios: Sequence[float] = (1.0,),
        lr: float,
        **hyperparameters: Any,
    ) -> None:
        self.adapters, self.groups = adapters, groups
        self.run_of: dict[int, Run] = {}
        group_of = {id(parameter): index for index, group in enumerate(groups) for parameter in group}
        runs: list[list[Run]] = [[] for _ in groups]
        for index, neighbours in groupby(adapters.parameters, key=lambda parameter: group_of[id(parameter)]):
            parameters = list(neighbours)
            shape = (sum(parameter.numel() for parameter in parameters),)
            flat = torch.nn.Parameter(adapters.view(adapters.values, parameters, shape))
            flat.grad = adapters.view(adapters.gradient, parameters, shape)
            run = Run(flat, adapters.offsets[id(parameters[0])])
            self.run_of |= {id(parameter): run for parameter in parameters}
            runs[index].append(run)
        flats = [[run.flat for run in group] for group in runs]
        settings = [{"params": group, "lr": lr * ratio} for group, ratio in zip(flats, lr_ratios, strict=True)]
        super().__init__(settings, lr=lr, **hyperparameters, fused=True)

    def state_dict(self) -> dict[str, Any]:
        """The state, a parameter an entry; views of the moments, not copies."""
        ends = [0]
        for group in self.groups:
            ends.append(ends[-1] + len(group))
        settings = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        places = [list(range(*bounds)) for bounds in pairwise(ends)]
        return {
            "state": {index: self._part(each) for index, each in enumerate(chain(*self.groups))} if self.state else {},
            "param_groups": [
                *({**group, "params": place} for group, place in zip(settings, places, strict=True)),
                *({**group, "params": [], "weight_decay": 0.0} for group in settings),
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state that `state_dict` gave, or the trainer of another engine.

        ValueError for one in other groups: its entries are in another order.
        """
        parts, saved = state_dict["state"], state_dict["param_groups"]
        if len(saved) != 2 * len(self.groups):
            raise ValueError(f"the state has {len(saved)} groups of parameters, not {2 * len(self.groups)}")
        count = 0
        groups: list[dict[str, Any]] = []
        for group, live in zip(saved, self.param_groups, strict=False):  # those without weight decay are empty
            places = list(range(count, count + len(live["params"])))
            groups.append({**group, "params": places, "fused": True, "foreach": None})
            count += len(places)
        state: dict[int, dict[str, Any]] = {}
        if parts:
            moments = {name: torch.empty_like(self.adapters.values) for name in MOMENTS}
            for index, parameter in enumerate(chain(*self.groups)):
                for name, flat in moments.items():
                    self.adapters.view(flat, [parameter], parameter.shape).copy_(parts[index][name])
            runs = {id(run.flat): run for run in self.run_of.values()}
            for index, flat in enumerate(chain(*(group["params"] for group in self.param_groups))):
                start = runs[id(flat)].start
                cut = {name: moment[start : start + flat.numel()] for name, moment in moments.items()}
                # A count of its own: an optimiser over many parameters adds to each one's, in place.
                state[index] = {"step": torch.as_tensor(parts[0]["step"]).clone(), **cut}
        super().load_state_dict({"state": state, "param_groups": groups})

    def _part(self, parameter: Any) -> dict[str, Any]:
        run = self.run_of[id(parameter)]
        state, start = self.state[run.flat], self.adapters.offsets[id(parameter)] - run.start
        views = {name: state[name][start : start + parameter.numel()].view(parameter.shape) for name in MOMENTS}
        return {"step": state["step"].clone(), **views}
