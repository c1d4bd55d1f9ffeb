"""Where the compute group computes: this run's GPUs and the others, one that fails among them, one that is full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from env_check.conftest import Faults

from loradock.env_check.base import Finding, Intent, error, ok
from loradock.env_check.compute import collective, places
from loradock.env_check.compute.collective import Exchange
from loradock.env_check.compute.places import Device
from loradock.env_check.remedies import showing
from loradock.facts import Facts, Gpu

A100 = Gpu(name="NVIDIA A100", memory_bytes=2**36, capability=(8, 0))
T4 = Gpu(name="Tesla T4", memory_bytes=2**34, capability=(7, 5))
# What torch says of a GPU that other processes have filled.
FULL = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 5 has a total capacity of 79.15 GiB of which 3.19 MiB is free"
)


def machine(*gpus: Gpu, **more: Any) -> Facts:
    return Facts(platform="", python="", cpus=2, memory_bytes=2**34, in_container=False, gpus=gpus, **more)


@pytest.fixture
def plan(tmp_path) -> Intent:
    return Intent(output=tmp_path, cache=tmp_path, scratch=tmp_path)


def looked(facts: Facts, plan: Intent, look_at: Callable[[Device], list[Finding]], **environ: str) -> list[Finding]:
    """What `at_each` makes of it; the GPUs are judged without torch, which has none here."""
    found: list[Finding] = []
    for place in places.places(facts, plan):
        found += places.at_one(place, look_at, facts, environ)
    return found


def test_places_are_the_gpus_in_the_dtype_that_a_run_has_there(plan):
    gpus = places.places(machine(A100, T4), plan)
    assert [str(place) for place in gpus] == ["cuda:0 in bfloat16", "cuda:1 in float16"]
    assert [str(place) for place in places.places(machine(), plan)] == ["cpu in float32"]


@pytest.mark.parametrize(
    ("settings", "used"),
    [
        ({}, (0,)),
        ({"world_size": 4, "local_world_size": 4}, (0, 1, 2, 3)),
        ({"world_size": 16, "local_world_size": 2, "local_rank": 1}, (0, 1)),
        ({"world_size": 2, "local_world_size": 1}, (0,)),
    ],
)
def test_the_gpus_of_a_run_are_those_of_its_processes_here(plan, settings, used):
    facts = machine(*[A100] * 4, **settings)
    assert places.used_gpus(facts) == used
    assert tuple(n for n, place in enumerate(places.places(facts, plan)) if place.is_used) == used


def test_a_gpu_that_is_full_hinders_no_run_on_another_one_and_costs_no_other_finding(plan, faults: Faults):
    def at(place: Device) -> list[Finding]:
        if place.device == "cuda:1":
            raise torch.OutOfMemoryError(FULL)
        return [ok(f"right on {place.device}")]

    found = looked(machine(A100, A100, A100), plan, at)
    assert [each.severity for each in found] == ["ok", "warning", "ok"]
    assert found[1].remedy == "export CUDA_VISIBLE_DEVICES=0"
    assert found[1].what.endswith("for a small computation; a run here uses cuda:0")
    told = {**asdict(found[1]), "check": "attention-kernels"}
    faults.seen("another GPU has no free memory", made="constructed", finding=told, check="attention-kernels")


def test_a_gpu_that_is_full_stops_the_run_that_uses_it_and_says_which_are_left(plan, faults: Faults):
    def at(place: Device) -> list[Finding]:
        if place.device == "cuda:0":
            raise torch.OutOfMemoryError(FULL)
        return [ok("right")]

    found = looked(machine(A100, A100), plan, at, CUDA_VISIBLE_DEVICES="4,5")
    assert (found[0].severity, found[0].remedy) == ("error", "export CUDA_VISIBLE_DEVICES=5")
    told = {**asdict(found[0]), "check": "training"}
    faults.seen("the run's GPU has no free memory", made="constructed", finding=told, check="training", exit_code=80)
    (alone,) = looked(machine(A100), plan, at)
    assert alone.remedy.startswith("nvidia-smi --query-compute-apps=")
    both = looked(machine(A100, A100, world_size=2, local_world_size=2), plan, at)
    assert both[0].severity == "error"


def test_what_is_wrong_with_a_gpu_that_the_run_leaves_alone_is_a_warning(plan):
    found = looked(machine(A100, T4), plan, lambda place: [error(f"wrong on {place.device}", remedy="x")])
    assert [(each.severity, each.remedy) for each in found] == [
        ("error", "x"),
        ("warning", "export CUDA_VISIBLE_DEVICES=0"),
    ]


@pytest.mark.parametrize(
    ("failure", "severity", "begins"),
    [
        (ValueError("seven\nlines"), "warning", "undecided on cpu in float32: the check itself failed at "),
        (RuntimeError("size mismatch"), "warning", "undecided on cpu in float32: the check itself failed at "),
        (RuntimeError("CUDA error: misaligned address"), "error", "the check failed on cpu in float32 at "),
        (ImportError("libcudnn.so.9: cannot open"), "error", "the check failed on cpu in float32 at "),
        (OSError(5, "Input/output error"), "error", "the check failed on cpu in float32 at "),
    ],
)
def test_only_what_a_device_a_library_or_a_file_does_is_the_machines_fault(plan, failure, severity, begins):
    def at(place: Device) -> list[Finding]:
        raise failure

    (found,) = looked(machine(), plan, at)
    assert (found.severity, found.remedy) == (severity, "loradock env-check --only gpu,packages,compute --report")
    assert found.what.startswith(f"{begins}test_compute_places.py:")
    assert str(failure).splitlines()[0] in found.what


@pytest.mark.parametrize("said", ["CUDA error: out of memory", "cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED when calling"])
def test_a_gpu_without_room_for_a_context_is_full_too(said):
    assert places.is_full(RuntimeError(said))
    assert not places.is_full(RuntimeError("CUDA error: misaligned address"))


def test_gpus_are_named_as_the_variable_names_them():
    assert showing((1, 2), {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b,GPU-c"}) == "export CUDA_VISIBLE_DEVICES=GPU-b,GPU-c"
    assert showing((0, 3), {}) == "export CUDA_VISIBLE_DEVICES=0,3"


@pytest.mark.parametrize(
    ("settings", "gpus", "severity"),
    [
        ({}, (0, 1, 2, 3), "warning"),
        ({"world_size": 2, "local_world_size": 2}, (0, 1), "error"),
        ({"world_size": 8, "local_world_size": 4}, (0, 1, 2, 3), "error"),
    ],
)
def test_nccl_is_an_error_over_the_gpus_of_several_processes_alone(plan, settings, gpus, severity):
    facts = machine(*[A100] * 4, **settings)
    chosen, is_needed = collective.wanted(facts, plan)
    assert chosen == gpus
    exchange = Exchange(backend="nccl", ranks=len(gpus), faults=("no path between the GPUs",) * len(gpus))
    assert collective.judge(exchange, {}, (), is_needed=is_needed).severity == severity


def test_several_nodes_with_a_process_each_need_the_loopback(plan):
    facts = machine(A100, world_size=2, local_world_size=1)
    assert collective.wanted(facts, plan) == ((0,), True)
    assert collective.wanted(replace(facts, world_size=1), plan) == ((0,), False)
