"""Attention over latents in the fast engine: what is wrong in it is refused before a run, and what it leaves to PEFT.

That loss and gradients are those of a float64 twin is in tests/training/test_mixtures.py, that both engines give the
same gradient in test_mixture.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from jobs import job_of

from loradock.training.backends.fast import families, self_check
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.families.parts import Norm, Unfit
from loradock.training.backends.fast.mixers.latent import Latent
from loradock.training.backends.fast.model import FastModel
from loradock.training.job import Job, Unsound


def latent(model: FastModel) -> Latent:
    """The first half of the second layer."""
    mixer = model.layers[1].mixer
    assert isinstance(mixer, Latent)
    return mixer


def rolled(norm: Norm | None) -> Norm:
    assert norm is not None
    return replace(norm, weight=norm.weight.roll(1))


def other_query_norm(model: FastModel) -> None:
    """A latent of queries is normed by weights that stand one place further."""
    mixer = latent(model)
    mixer.parts = replace(mixer.parts, query_norm=rolled(mixer.parts.query_norm))


def other_latent_norm(model: FastModel) -> None:
    """So is that of keys and values."""
    mixer = latent(model)
    mixer.parts = replace(mixer.parts, latent_norm=rolled(mixer.parts.latent_norm))


def in_halves(model: FastModel) -> None:
    """A column turns with that of the other half."""
    mixer = latent(model)
    mixer.parts = replace(mixer.parts, is_interleaved=not mixer.parts.is_interleaved)


def without_temperature(model: FastModel) -> None:
    """Far queries are as they are."""
    mixer = latent(model)
    mixer.parts = replace(mixer.parts, query_scale=None)


def unturned_keys(model: FastModel) -> None:
    """Queries turn alone."""
    mixer: Any = latent(model)
    rotate = mixer._rotate

    def queries_alone(heads: torch.Tensor, batch: Any, *, sign: int) -> None:
        if heads.shape[1] > 1:
            rotate(heads, batch, sign=sign)

    mixer._rotate = queries_alone


def of_one_head(model: FastModel) -> None:
    """The turned part of keys learns of one head's gradient."""
    mixer: Any = latent(model)
    attention = mixer.attention

    class OfOne:
        def __getattr__(self, name: str) -> Any:
            return getattr(attention, name)

        def backward(self, *given: Any) -> Any:
            dq, dk, dv = attention.backward(*given)
            dk[:, 1:, mixer.parts.heads.still :] = 0.0
            return dq, dk, dv

    mixer.attention = OfOne()


def job_on(kind: str, folder: Path, rows: Path, *settings: str, **shape: Any) -> Job:
    base = mixtures.make(folder / "model", kind, **shape)
    return job_of(folder, "lora.targets=[all-linear,experts]", *settings, model=base, data=rows)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("deepseek_v3", other_query_norm),
        ("glm4_moe_lite", other_latent_norm),
        ("deepseek_v2", other_latent_norm),
        ("deepseek_v2", in_halves),
        ("deepseek_v3", in_halves),
        ("mistral3", without_temperature),
        ("glm4_moe_lite", unturned_keys),
        ("mistral3", of_one_head),
        ("deepseek_v2", of_one_head),
    ],
)
def test_what_is_wrong_in_it_is_refused(
    kind: str, fault: Callable[[FastModel], None], tmp_path: Path, rows: Path
) -> None:
    job = job_on(kind, tmp_path, rows, "engine=fast")
    model = build(job)[0]
    for module in job.model.modules():  # what all norms of these classes begin with hides an exchange
        if hasattr(module, "weight") and "RMSNorm" in type(module).__name__:
            module.weight.data.add_(torch.randn_like(module.weight) * 0.1)
    self_check.check(model, job)
    fault(model)
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        self_check.check(model, job)


def test_pairs_of_columns_may_lie_in_halves(tmp_path: Path, rows: Path) -> None:
    job = job_on("deepseek_v3", tmp_path, rows, "engine=fast", rope_interleave=False)
    model = build(job)[0]
    assert not latent(model).parts.is_interleaved
    assert self_check.check(model, job).exact.adapter < 1e-4


@pytest.mark.parametrize(
    ("kind", "shape", "why"),
    [
        ("deepseek_v3", {"v_head_dim": 32}, r"its values \(32\) are wider than its keys \(24\)"),
        ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}, "group_limited_greedy"),
        ("mistral3", {"head_dim": 48}, "8 columns of a key turn, and its rotary embedding has angles for 16"),
    ],
)
def test_what_it_does_not_compute_is_said(
    kind: str, shape: dict[str, Any], why: str, tmp_path: Path, rows: Path
) -> None:
    job = job_on(kind, tmp_path, rows, **shape)
    with pytest.raises(Unfit, match=why):
        families.read(job.model, positions=64)
