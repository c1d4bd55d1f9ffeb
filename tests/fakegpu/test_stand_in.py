"""The stand-in itself, where it erred once: it is wrong before the product is."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest
import torch
from triton.runtime.jit import JITFunction

from loradock.env_check.compute import optimizer
from loradock.env_check.compute.places import Device
from loradock.training.backends.fast import kernels
from loradock.training.backends.fast.kernels import kernels_for
from loradock.training.backends.fast.kernels.base import Activation

pytestmark = [pytest.mark.fakegpu, pytest.mark.thin(1)]


@pytest.mark.thin(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_equal_tensors_are_equal(dtype: torch.dtype) -> None:
    """CUDA's own `equal` reads back what its kernels computed, and they compute nothing here."""
    one, other = (torch.ones(7, device="cuda").to(dtype) * 2 for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, other + 1)


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_a_kernel_takes_the_row_stride_of_each_of_its_arguments(act: Activation) -> None:
    """Halves of wider tensors, as the fast engine hands them over."""
    generator = torch.Generator().manual_seed(0)
    wide = [torch.randn(5, 128, generator=generator).to("cuda", torch.bfloat16) for _ in range(3)]
    found = []
    for name in ("triton", "torch"):
        da, g, u = (each.clone()[:, :64] for each in wide)
        activated = kernels_for(torch.device("cuda"), name).gate_backward_(da, g, u, act)
        found.append((activated.contiguous(), g.contiguous(), u.contiguous()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_clamped_gate_takes_the_row_stride_of_each_of_its_arguments() -> None:
    generator = torch.Generator().manual_seed(0)
    wide = [torch.randn(5, 192, generator=generator).mul_(9).to("cuda", torch.bfloat16) for _ in range(2)]
    found = []
    for name in ("triton", "torch"):
        da, gate_up = wide[0].clone()[:, :64], wide[1].clone()[:, :128]
        these = kernels_for(torch.device("cuda"), name)
        result = these.clamped_gate(gate_up, alpha=1.7, limit=7.0)
        activated = these.clamped_gate_backward_(da, gate_up, alpha=1.7, limit=7.0)
        found.append((result, activated.contiguous(), gate_up.contiguous()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_every_kernel_of_the_fast_engine_is_computed_at_once() -> None:
    """Interpreted it takes a hundred times as long, and a training of three steps five minutes."""
    stand_ins: dict[str, object] = import_module("gpu_on_cpu.own_kernels").OWN_KERNELS
    modules = [import_module(f"{kernels.__name__}.{each.name}") for each in pkgutil.iter_modules(kernels.__path__)]
    launched = {name for module in modules for name, each in vars(module).items() if isinstance(each, JITFunction)}
    assert {name for name in launched if name.endswith("_kernel")} == set(stand_ins)


@pytest.mark.thin(4)
@pytest.mark.fakegpu(memory=64 << 20)
def test_memory_ends_where_the_device_does() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(80 << 20, dtype=torch.uint8, device="cuda")
    assert torch.empty(8 << 20, dtype=torch.uint8, device="cuda").is_cuda


@pytest.mark.thin(4)
@pytest.mark.fakegpu(poison=True)
def test_fresh_memory_is_no_number() -> None:
    assert torch.empty(1 << 20, device="cuda").isnan().all()


def test_a_captured_stream_takes_no_pageable_copy() -> None:
    graph, host, there = torch.cuda.CUDAGraph(), torch.ones(64), torch.zeros(64, device="cuda")
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(graph):
        there.copy_(host, non_blocking=True)


def test_a_replay_computes_what_was_captured() -> None:
    there = torch.ones(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = there * 2
    there.fill_(3)
    graph.replay()
    assert torch.equal(doubled, torch.full((64,), 6.0, device="cuda"))


@pytest.mark.full
def test_what_inductor_compiles_is_loaded_and_launched() -> None:
    """Its numbers are not computed; its launches are counted like any other."""
    from gpu_on_cpu import COUNTS  # pyright: ignore[reportMissingImports]  preloaded

    before = COUNTS.driver_launches
    torch.compile(lambda x: x * 2 + 1)(torch.ones(64, device="cuda"))
    assert COUNTS.driver_launches > before


def test_lion_of_bitsandbytes_takes_its_steps() -> None:
    place = Device(device="cuda:0", dtype="float32", capability=(9, 0))
    assert optimizer.fault(place, "lion", optimizer.exact_lion_steps()) is None
    assert optimizer.fault(place, "lion", optimizer.exact_steps()) is not None
