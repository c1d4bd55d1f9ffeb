"""The ordered table of attention backends, and the choice among them.

To add one: a module with a class that has what `Attention` names, and its line here. The first without an obstacle is
taken, so the fastest stand first; the last has none.
"""

from __future__ import annotations

import torch

from loradock.engine.fast.attention.base import Attention, Case
from loradock.engine.fast.attention.flash_cpu import FlashCpu
from loradock.engine.fast.attention.per_document import PerDocument

BACKENDS: tuple[Attention, ...] = (FlashCpu(), PerDocument())


def choose(
    *,
    device: str,
    capability: tuple[int, int] | None,
    dtype: torch.dtype,
    head_dim: int,
    softcap: float | None,
    has_flash_attn: bool,
    asked: str,
) -> tuple[Attention, str]:
    """Return the backend for a case, and why it is the one, in a sentence. See `Case` for the arguments.

    `asked`: auto, or sdpa for torch's own.
    """
    case = Case(
        device=device,
        capability=capability,
        dtype=dtype,
        head_dim=head_dim,
        softcap=softcap,
        has_flash_attn=has_flash_attn,
    )
    return next((backend, backend.merit) for backend in BACKENDS if backend.obstacle(case) is None)
