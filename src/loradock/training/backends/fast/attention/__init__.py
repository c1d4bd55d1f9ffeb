"""The ordered table of attention backends, and the choice among them.

To add one: a module with a class that has what `Attention` names, and its place in `TORCH` for its device. The first
without an obstacle is taken, so the fastest stand first; the last has none.
"""

from __future__ import annotations

import torch

from loradock.errors import EnvironmentUnfit
from loradock.training.backends.fast.attention.base import Attention, Case
from loradock.training.backends.fast.attention.flash_attn import FlashAttn
from loradock.training.backends.fast.attention.flash_cpu import FlashCpu
from loradock.training.backends.fast.attention.flash_torch import FlashTorch
from loradock.training.backends.fast.attention.per_document import PerDocument

FLASH_ATTN = FlashAttn()
TORCH: dict[str, tuple[Attention, ...]] = {
    "cuda": (FlashTorch(), PerDocument()),
    "cpu": (FlashCpu(), PerDocument()),
}


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
    """Return the backend for a case, and why it is the one, in a sentence. See `Case` for the first six.

    `asked`: auto, flash_attention_2 (the flash-attn package or nothing) or sdpa (torch's own kernels). Raises
    EnvironmentUnfit where flash-attn is asked for and cannot serve, ValueError for another word.
    """
    case = Case(
        device=device,
        capability=capability,
        dtype=dtype,
        head_dim=head_dim,
        softcap=softcap,
        has_flash_attn=has_flash_attn,
    )
    candidates = _candidates(device, asked)
    obstacles = [backend.obstacle(case) for backend in candidates]
    if None not in obstacles:
        raise EnvironmentUnfit(
            f"attention {asked} cannot be used: {'; '.join(map(str, obstacles))}", hint="--set model.attention=sdpa"
        )
    chosen = obstacles.index(None)
    passed = [f"model.attention is {asked}"] * (asked != "auto") + [str(why) for why in obstacles[:chosen]]
    merit = candidates[chosen].merit
    return candidates[chosen], f"{merit} ({'; '.join(dict.fromkeys(passed))})" if passed else merit


def _candidates(device: str, asked: str) -> tuple[Attention, ...]:
    if asked == "flash_attention_2":
        return (FLASH_ATTN,)
    if asked == "sdpa" or (asked == "auto" and device == "cpu"):
        return TORCH[device]
    if asked == "auto":
        return (FLASH_ATTN, *TORCH[device])
    raise ValueError(f"no attention backend is called {asked}: auto, flash_attention_2, sdpa")
