"""The gradient's norm, and what it is cut to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from jobs import job_of, loop_of

from loradock.training.backends.fast.backend import FastBackend

MANY = 5_000_000


def test_the_norm_of_millions_of_gradients_is_exact_and_cut_to_the_largest_allowed(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    backend = loop_of(job_of(tmp_path, "engine=fast", "train.max_grad_norm=2", model=llama, data=rows)).backend
    assert isinstance(backend, FastBackend)
    flat = torch.randn(MANY, generator=torch.Generator().manual_seed(0))
    expected = math.sqrt(float(flat.double().pow(2).sum()))
    backend.model.adapters.gradient = flat
    assert float(backend.clip()) == pytest.approx(expected, rel=1e-6)
    assert math.sqrt(float(flat.double().pow(2).sum())) == pytest.approx(2.0, rel=1e-6)
