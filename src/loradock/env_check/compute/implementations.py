"""The attention implementations here: torch's SDPA by backend, its varlen, flash-attn, transformers' eager."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from loradock.env_check.base import Intent
from loradock.env_check.compute.exact_attention import Case
from loradock.env_check.compute.places import Device
from loradock.facts import Facts
from loradock.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    import torch

MOST_FLASH = 256
BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
NO_KERNEL = ("No available kernel", "No valid execution plans", "No viable backend", "not supported")
Attend = Callable[..., "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One implementation. `setting` is the `model.attention` that leads to it, None for one that no setting names.

    `attend(query, key, value, case, shape)` takes [B, H, L, D] and [B, G, L, D], and gives [B, H, L, D].
    """

    name: str
    setting: str | None
    attend: Attend
    obstacle: str | None = None


def implementations(place: Device, facts: Facts, shape: AttentionShape) -> tuple[Implementation, ...]:
    """All that are installed for this place; `obstacle` says what of the shape one cannot do, as documented.

    SDPA is here by each of its backends, and as torch chooses among them.
    """
    capped = "no softcap" if shape.softcap else None
    choices = [
        Implementation(name=f"sdpa {name}", setting="sdpa", attend=partial(_sdpa, BACKENDS[name]), obstacle=capped)
        for name in (BACKENDS if place.is_gpu else ("flash", "math"))
    ]
    choices.append(Implementation(name="sdpa", setting="sdpa", attend=partial(_sdpa, None), obstacle=capped))
    if has_flash(place):
        too_long = f"heads of at most {MOST_FLASH}" if shape.head_size > MOST_FLASH else None
        windowed = "no window" if shape.window else None
        choices.append(
            Implementation(name="varlen", setting=None, attend=_varlen, obstacle=too_long or capped or windowed)
        )
        if "flash-attn" in facts.packages:
            choices.append(
                Implementation(name="flash-attn", setting="flash_attention_2", attend=_flash_attn, obstacle=too_long)
            )
    return (*choices, Implementation(name="eager", setting="eager", attend=_eager))


def wanted(facts: Facts, plan: Intent, place: Device) -> str:
    """The `model.attention` of a run here: as planned, else by the rule that the plan follows.

    torch's SDPA cannot cap scores: transformers' eager attention serves such a model where flash-attn does not.
    """
    if plan.plan:
        return plan.plan.attention.value
    setting = plan.config.model.attention if plan.config else "auto"
    if setting != "auto":
        return setting
    if has_flash(place) and "flash-attn" in facts.packages:
        return "flash_attention_2"
    return "eager" if plan.attention.softcap else "sdpa"


def has_flash(place: Device) -> bool:
    """True where FlashAttention-2 has kernels."""
    from loradock.plan.gpu_table import FIRST_FLASH

    return place.is_gpu and (place.capability or (0, 0)) >= FIRST_FLASH and place.dtype != "float32"


def is_incapable(failure: Exception) -> bool:
    """True where torch refuses a shape, instead of failing at it."""
    return isinstance(failure, RuntimeError) and any(text in str(failure) for text in NO_KERNEL)


def only(backend: str | None) -> contextlib.AbstractContextManager[Any]:
    """Leave SDPA this backend alone; None leaves the choice to torch."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.__members__[backend]]) if backend else contextlib.nullcontext()


def _sdpa(backend: str | None, query: Any, key: Any, value: Any, case: Case, shape: AttentionShape) -> torch.Tensor:
    """As transformers calls it: grouped heads go in as they are without a mask, repeated with one."""
    import torch

    with warnings.catch_warnings(), only(backend):
        warnings.simplefilter("ignore", UserWarning)
        attend = torch.nn.functional.scaled_dot_product_attention
        group = query.shape[1] // key.shape[1]
        if case.is_plain:
            return attend(query, key, value, is_causal=True, enable_gqa=group > 1)
        key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
        return attend(query, key, value, attn_mask=case.allowed()[:, None].to(query.device))


def _varlen(query: Any, key: Any, value: Any, case: Case, shape: AttentionShape) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))

    def attend(q: Any, k: Any, v: Any, starts: Any, longest: int) -> Any:
        return varlen_attn(q, k, v, starts, starts, longest, longest, is_causal=True)

    return _by_tokens(attend, query, key, value, case)


def _flash_attn(query: Any, key: Any, value: Any, case: Case, shape: AttentionShape) -> torch.Tensor:
    import importlib

    flash_attn: Any = importlib.import_module("flash_attn")
    window = (case.window - 1, 0) if case.window else (-1, -1)

    def attend(q: Any, k: Any, v: Any, starts: Any, longest: int) -> Any:
        return flash_attn.flash_attn_varlen_func(
            q, k, v, starts, starts, longest, longest, causal=True, window_size=window, softcap=shape.softcap or 0.0
        )

    return _by_tokens(attend, query, key, value, case)


def _by_tokens(attend: Callable[..., Any], query: Any, key: Any, value: Any, case: Case) -> torch.Tensor:
    """Call a kernel that takes documents end to end: tokens [T, H, D] and where each document starts."""
    import torch

    real = case.real().to(query.device)
    lengths = torch.tensor([0, *(length for _, _, length in case.documents)], dtype=torch.int32)
    starts = lengths.cumsum(0, dtype=torch.int32).to(query.device)
    tokens = [tensor.transpose(1, 2)[real].contiguous() for tensor in (query, key, value)]
    out = torch.zeros_like(query).transpose(1, 2)
    return out.masked_scatter(real[..., None, None], attend(*tokens, starts, int(lengths.max()))).transpose(1, 2)


def _eager(query: Any, key: Any, value: Any, case: Case, shape: AttentionShape) -> torch.Tensor:
    """transformers' own function, Gemma 2's where scores are capped."""
    import torch
    from transformers.models.gemma2 import modeling_gemma2
    from transformers.models.llama import modeling_llama

    layer: Any = SimpleNamespace(num_key_value_groups=query.shape[1] // key.shape[1], training=False)
    mask = torch.zeros(case.rows, 1, query.shape[2], query.shape[2], dtype=query.dtype, device=query.device)
    mask = mask.masked_fill(~case.allowed()[:, None].to(query.device), torch.finfo(query.dtype).min)
    scaling = query.shape[-1] ** -0.5
    if shape.softcap:
        function = partial(modeling_gemma2.eager_attention_forward, softcap=shape.softcap)
    else:
        function = modeling_llama.eager_attention_forward
    out, _ = function(layer, query, key, value, mask, scaling=scaling, dropout=0.0)
    return out.transpose(1, 2)
