"""The table of named GPUs: complete, found by short names and by NVML's, and the same figures for all who ask."""

from __future__ import annotations

import pytest

from loradock.env_check.known import peak
from loradock.errors import UsageError
from loradock.plan import gpu_table

NAMED = "t4 v100 2080ti 3090 4090 a10 l4 l40s a100-40 a100-80 h100 h200 b200".split()


@pytest.mark.parametrize("name", NAMED)
def test_a_gpu_has_all_that_a_plan_needs_with_its_source(name: str) -> None:
    known = gpu_table.named(name)
    gpu = known.as_gpu()
    assert 10 < gpu.memory_bytes / 2**30 < 200
    assert (7, 0) <= gpu.capability <= (10, 0)
    assert 50 < known.tflops < 2500
    assert 250 < known.memory < 8000
    assert 0.3 < known.sustained < 0.8
    assert known.source.startswith("NVIDIA ")


def test_a_gpu_is_the_same_by_its_short_name_and_by_what_nvml_calls_it() -> None:
    for name in NAMED:
        known = gpu_table.named(name)
        assert gpu_table.known_as(known.name) is known
        assert peak(known.name) is known


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("A10", "a10"),
        ("NVIDIA_A10", "a10"),
        ("rtx4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("Tesla T4", "t4"),
        ("h100pcie", "h100-pcie"),
    ],
)
def test_a_name_may_be_written_as_people_and_makers_do(name: str, key: str) -> None:
    assert gpu_table.named(name).key == key


def test_the_beginning_of_several_names_lists_them() -> None:
    with pytest.raises(UsageError) as refused:
        gpu_table.named("a100")
    assert refused.value.hint == "which one: a100-40, a100-80, a100-80-pcie?"


def test_no_two_gpus_have_one_name_once_it_is_bare() -> None:
    names = [
        (gpu_table.bare(word), each.key) for each in gpu_table.table() for word in (each.key, each.name, *each.called)
    ]
    assert len({bare for bare, _ in names}) == len(set(names))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a100-4", "did you mean a100-40?"),
        ("a11", "did you mean a10?"),
        ("a10g", "did you mean a10?"),
        ("x", "one of a10, "),
    ],
)
def test_an_unknown_gpu_is_refused_with_what_is_near(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match="unknown GPU") as refused:
        gpu_table.named(name)
    assert (refused.value.hint or "").startswith(hint)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100 MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 5090 D", "NVIDIA H20-3e",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA GH200 144G HBM3e", "Radeon VII",
    ],
)  # fmt: skip
def test_a_slice_a_variant_and_an_unknown_gpu_have_no_figures(name: str) -> None:
    assert gpu_table.known_as(name) is None
