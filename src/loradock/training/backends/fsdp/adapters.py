"""The adapter of a sharded model as one: gathered for a checkpoint and for the export, cut again on a resume.

A checkpoint holds the whole adapter under peft's names, as every engine's does, whatever the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed

from loradock.model.spread import gathered, own_parameters


def broadcast(model: Any) -> None:
    """Give every process rank 0's adapter, while it is whole."""
    for _, _, _, parameter in own_parameters(model):
        if parameter.requires_grad:
            torch.distributed.broadcast(parameter.data, src=0)


def join(model: Any, *, everywhere: bool) -> list[tuple[Any, str, torch.nn.Parameter]]:
    """Put whole adapter weights, on the host, in the place of the sharded ones; returns (module, key, sharded one).

    Not `everywhere`: on rank 0 alone. The others get their own part, and need no memory for the rest.
    """
    before: list[tuple[Any, str, torch.nn.Parameter]] = []
    keeps = everywhere or torch.distributed.get_rank() == 0
    for _, module, key, parameter in list(own_parameters(model)):
        if parameter.requires_grad:
            sharded: Any = parameter.detach()
            part = sharded.to_local()
            whole = gathered(part, shape=parameter.shape)
            module._parameters[key] = torch.nn.Parameter((whole if keeps else part).cpu())
            before.append((module, key, parameter))
    return before


@contextmanager
def as_one(model: Any) -> Iterator[None]:
    """Inside, rank 0 sees the whole adapter."""
    before = join(model, everywhere=False)
    try:
        yield
    finally:
        for module, key, parameter in before:
            module._parameters[key] = parameter
