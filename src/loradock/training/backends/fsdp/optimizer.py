"""AdamW over this process's part of the adapter, and a state that any engine reads.

In a checkpoint the moments are whole, one entry a parameter in the order of the model, in the two groups that
transformers' trainer lays out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

from loradock.model.spread import gathered, part_of

MOMENTS = ("exp_avg", "exp_avg_sq")
CLIP_EPSILON = 1e-6


class ShardedAdamW(torch.optim.AdamW):
    """Decoupled weight decay (Loshchilov and Hutter 2019) over the local rows of DTensors; the moments are float32.

    AdamW is elementwise, so that each process updates its rows alone. Parameters of which it has none are left out.
    `hyperparameters` are torch's.
    """

    def __init__(self, sharded: Sequence[Any], **hyperparameters: Any) -> None:
        self.sharded = list(sharded)
        self.local = [torch.nn.Parameter(each.detach().to_local()) for each in self.sharded]
        held = [each for each in self.local if each.numel()]
        super().__init__(held, **hyperparameters, fused=True)

    def take_gradients(self) -> torch.Tensor:
        """Take this process's rows of the gradients; returns the norm of the whole gradient."""
        device = torch.device("cpu")
        for local, sharded in zip(self.local, self.sharded, strict=True):
            local.grad = sharded.grad.to_local() if sharded.grad is not None else None
            device = local.device
        found = [each.grad for each in self.local if each.grad is not None and each.numel()]
        norms = torch.stack(torch._foreach_norm(found)) if found else torch.zeros(1, device=device)
        total = norms.square().sum()
        torch.distributed.all_reduce(total)
        return total.sqrt()

    def clip(self, norm: torch.Tensor, *, most: float) -> None:
        """Cut the gradient to the largest norm allowed; 0: any."""
        found = [each.grad for each in self.local if each.grad is not None]
        if most and found:
            torch._foreach_mul_(found, (most / (norm + CLIP_EPSILON)).clamp(max=1.0))

    def forget_gradients(self) -> None:
        """Drop all gradients."""
        for local, sharded in zip(self.local, self.sharded, strict=True):
            local.grad = sharded.grad = None

    def whole_state(self) -> dict[str, Any]:
        """The state of the whole adapter on rank 0, of this process's part on the others. Every process takes part."""
        keeps = torch.distributed.get_rank() == 0
        state: dict[int, dict[str, Any]] = {}
        steps = [each["step"] for each in self.state.values()]
        pairs = list(zip(self.local, self.sharded, strict=True)) if self._has_begun() else []
        for index, (local, sharded) in enumerate(pairs):
            entry = self.state.get(local) or {}
            state[index] = {"step": steps[0].clone().cpu() if steps else torch.tensor(0.0)}
            for name in MOMENTS:
                part = entry.get(name, torch.empty_like(local))
                whole = gathered(part, shape=sharded.shape)
                state[index][name] = (whole if keeps else part).detach().cpu()
        group = {key: value for key, value in self.param_groups[0].items() if key != "params"}
        return {
            "state": state,
            "param_groups": [
                {**group, "params": list(range(len(self.sharded)))},
                {**group, "params": [], "weight_decay": 0.0},
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up this process's part of a whole state, which any engine may have given."""
        count, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        held = [index for index, each in enumerate(self.local) if each.numel()]
        whole = state_dict["state"]
        state = {
            number: {
                "step": whole[index]["step"],
                **{name: part_of(whole[index][name], count=count, rank=rank) for name in MOMENTS},
            }
            for number, index in enumerate(held)
            if whole
        }
        group = {**state_dict["param_groups"][0], "params": list(range(len(held))), "fused": True, "foreach": None}
        super().load_state_dict({"state": state, "param_groups": [group]})

    def _has_begun(self) -> bool:
        """Whether any process has a state: one may hold no rows at all."""
        flag = torch.tensor([float(bool(self.state))])
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag.item())


class Kept:
    """A state that was gathered before the one who writes it asks for it."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        return self.state
