"""AdamW over the flat adapters: one fused update for all of them, and a state that any engine reads.

In a checkpoint the moments are cut into one entry a parameter, in the order of the model, in two groups (with and
without weight decay), which is how transformers' trainer lays them out.
"""

from __future__ import annotations

from typing import Any

import torch

from loradock.training.backends.fast.adapters import FlatAdapters


class FlatAdamW(torch.optim.AdamW):
    """Decoupled weight decay (Loshchilov and Hutter 2019) over one vector; the moments are float32.

    `hyperparameters` are torch's.
    """

    def __init__(self, adapters: FlatAdapters, in_model_order: list[Any], **hyperparameters: Any) -> None:
        self.adapters = adapters
        self.in_model_order = in_model_order
        self.flat = torch.nn.Parameter(adapters.values)
        self.flat.grad = adapters.gradient
        super().__init__([self.flat], **hyperparameters, fused=True)

    def state_dict(self) -> dict[str, Any]:
        """The state, a parameter an entry; views of the moments, not copies."""
        whole = super().state_dict()
        state = whole["state"].get(0)
        group = whole["param_groups"][0]
        count = len(self.in_model_order)
        return {
            "state": {index: self._part(state, each) for index, each in enumerate(self.in_model_order)}
            if state
            else {},
            "param_groups": [
                {**group, "params": list(range(count))},
                {**group, "params": [], "weight_decay": 0.0},
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state that `state_dict` gave, or the trainer of another engine."""
        parts = state_dict["state"]
        group = {**state_dict["param_groups"][0], "params": [0], "fused": True, "foreach": None}
        if not parts:
            super().load_state_dict({"state": {}, "param_groups": [group]})
            return
        moments = {name: torch.empty_like(self.adapters.values) for name in ("exp_avg", "exp_avg_sq")}
        for index, parameter in enumerate(self.in_model_order):
            for name, flat in moments.items():
                self.adapters.view(flat, [parameter], parameter.shape).copy_(parts[index][name])
        super().load_state_dict({"state": {0: {"step": parts[0]["step"], **moments}}, "param_groups": [group]})

    def _part(self, state: dict[str, Any], parameter: Any) -> dict[str, Any]:
        views = {
            name: self.adapters.view(state[name], [parameter], parameter.shape) for name in ("exp_avg", "exp_avg_sq")
        }
        # A count of its own: an optimiser over many parameters adds to each one's, in place.
        return {"step": state["step"].clone(), **views}
