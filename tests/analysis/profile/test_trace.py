"""A trace is read as it was written: steps, nesting, what the device did, and what belongs to which part and role."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loradock.analysis.profile import flame, ranges, reading, roles, trace

MAIN, OTHER = 1, 2


def event(name: str, category: str, start: float, duration: float, thread: int = MAIN, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start,
        "dur": duration,
        "pid": 7,
        "tid": thread,
        "args": args,
    }


def step(number: int, start: float, duration: float) -> dict[str, Any]:
    return event(f"ProfilerStep#{number}", "user_annotation", start, duration)


def ours(name: str, start: float, duration: float) -> dict[str, Any]:
    return event(ranges.PREFIX + name, "user_annotation", start, duration)


ON_HOST = [
    step(3, 0, 100),
    step(4, 100, 100),
    *(
        each
        for start in (0, 100)
        for each in (
            ours(ranges.DATA, start + 1, 9),
            event("aten::cat", "cpu_op", start + 2, 4),
            ours(ranges.FORWARD, start + 10, 30),
            event("aten::mm", "cpu_op", start + 12, 20),
            event("aten::copy_", "cpu_op", start + 14, 5),
            ours(ranges.HEAD, start + 40, 10),
            event("aten::mm", "cpu_op", start + 41, 8),
            ours(ranges.BACKWARD, start + 50, 40),
            event("aten::mul", "cpu_op", start + 55, 10, OTHER),
            event("Optimizer.step#FlatAdamW.step", "user_annotation", start + 90, 8),
            event("aten::_fused_adamw_", "cpu_op", start + 91, 6),
        )
    ),
    event("aten::mm", "cpu_op", 205, 50),  # after the last step
]


def on_device(start: float) -> list[dict[str, Any]]:
    """One step whose kernels run later than they were launched, the backward's from another thread."""
    return [
        ours(ranges.FORWARD, start, 10),
        event("cudaLaunchKernel", "cuda_runtime", start + 1, 1, correlation=int(start) + 1),
        event("ampere_bf16_s16816gemm_128x128", "kernel", start + 20, 30, 99, correlation=int(start) + 1),
        event("cudaMemcpyAsync", "cuda_runtime", start + 3, 1, correlation=int(start) + 2),
        event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", start + 45, 10, 98, correlation=int(start) + 2),
        ours(ranges.BACKWARD, start + 10, 10),
        event("cudaLaunchKernel", "cuda_runtime", start + 12, 1, OTHER, correlation=int(start) + 3),
        event("kDequantizeBlockwise<__nv_bfloat16>", "kernel", start + 60, 20, 99, correlation=int(start) + 3),
    ]


def test_host_time_is_told_by_part_role_and_operator_without_what_lies_inside() -> None:
    read = reading.of(trace.parsed(ON_HOST))
    assert read.window == pytest.approx(100e-6)
    assert read.busy is None
    assert read.passes == 1
    assert read.parts == pytest.approx({ranges.FORWARD: 30e-6, ranges.HEAD: 10e-6, ranges.BACKWARD: 40e-6})
    assert read.roles == pytest.approx(
        {roles.DATA: 4e-6, roles.GEMM: 15e-6, roles.COPY: 5e-6, roles.HEAD: 8e-6, roles.ELEMENTWISE: 10e-6,
         roles.OPTIMIZER: 6e-6}
    )  # fmt: skip
    longest = read.operators[0]
    assert (longest["name"], longest["count"], longest["seconds"]) == ("aten::mm", 1, pytest.approx(15e-6))
    assert read.outside == pytest.approx(52e-6)


def test_an_operator_of_several_roles_is_listed_in_each_with_the_time_that_it_has_there() -> None:
    read = reading.of(trace.parsed(ON_HOST))
    found = {each["role"]: each for each in read.operators if each["name"] == "aten::mm"}
    assert {role: (each["seconds"], each["count"]) for role, each in found.items()} == {
        roles.GEMM: (pytest.approx(15e-6), 1),
        roles.HEAD: (pytest.approx(8e-6), 1),
    }
    for role, seconds in read.roles.items():
        assert sum(each["seconds"] for each in read.operators if each["role"] == role) == pytest.approx(seconds)


def test_a_kernel_belongs_to_the_range_that_launched_it_and_the_device_is_busy_where_any_runs() -> None:
    read = reading.of(trace.parsed([step(1, 0, 100), *on_device(0)]))
    assert read.busy == pytest.approx(55e-6)  # 20 .. 55 and 60 .. 80
    assert read.parts == pytest.approx({ranges.FORWARD: 30e-6, ranges.TO_DEVICE: 10e-6, ranges.BACKWARD: 20e-6})
    assert read.roles == pytest.approx({roles.GEMM: 30e-6, roles.COPY: 10e-6, roles.DEQUANTISE: 20e-6})
    assert read.operations == 3


def test_forward_passes_of_an_evaluation_are_no_passes_of_training() -> None:
    lines = [step(1, 0, 100), ours(ranges.EVALUATION, 10, 50), ours(ranges.FORWARD, 20, 10), ours(ranges.HEAD, 70, 5),
             event("aten::mm", "cpu_op", 22, 5)]  # fmt: skip
    read = reading.of(trace.parsed(lines))
    assert read.parts == pytest.approx({ranges.HEAD: 5e-6})
    assert read.roles == pytest.approx({roles.EVALUATION: 5e-6})


def test_the_union_counts_no_moment_twice() -> None:
    assert trace.union([(0, 10), (5, 12), (20, 21), (6, 7)]) == 13
    assert trace.union([]) == 0


def test_flame_lines_hold_paths_and_own_times(tmp_path: Path) -> None:
    file = tmp_path / "trace.json.gz"
    with gzip.open(file, "wt") as stream:
        json.dump({"traceEvents": ON_HOST}, stream)
    lines = flame.collapsed(flame.of_host(trace.read(file))).splitlines()
    assert "forward;aten::mm;aten::copy_ 10" in lines
    assert "forward;aten::mm 30" in lines
    counts = [int(line.rpartition(" ")[2]) for line in lines]
    assert counts == sorted(counts, reverse=True)
    device = flame.of_device(trace.parsed([step(1, 0, 100), *on_device(0)]))
    assert device["backward;kDequantizeBlockwise<__nv_bfloat16>"] == 20


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", roles.GEMM),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", roles.GEMM),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm>(Params)", roles.GEMM),
        ("aten::addmm", roles.GEMM),
        ("void pytorch_flash::flash_fwd_kernel<...>", roles.ATTENTION),
        ("fmha_cutlassB_bf16_aligned_64x64_k128_sm80", roles.ATTENTION),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", roles.ATTENTION),
        ("kDequantizeBlockwise<float, 512, 64, 8, 2>", roles.DEQUANTISE),
        ("bitsandbytes::dequantize_4bit", roles.DEQUANTISE),
        ("rms_norm_backward_kernel", roles.ELEMENTWISE),
        ("rope_kernel", roles.ELEMENTWISE),
        ("gate_backward_kernel", roles.ELEMENTWISE),
        ("cross_entropy_kernel", roles.HEAD),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>", roles.ELEMENTWISE),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", roles.OPTIMIZER),
        ("Memcpy HtoD (Pinned -> Device)", roles.COPY),
        ("Memset (Device)", roles.COPY),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", roles.COMMUNICATION),
        ("aten::view", roles.OTHER),
    ],
)
def test_a_name_alone_tells_the_role(name: str, role: str) -> None:
    assert roles.role_of(name, ()) == role
    assert roles.role_of(name, ("forward",)) == role


def test_a_range_tells_the_role_before_the_name_does() -> None:
    assert roles.role_of("aten::mm", ("head and loss",)) == roles.HEAD
    assert roles.role_of("aten::mul", ("backward", "attention")) == roles.ATTENTION
    assert roles.role_of("aten::mm", ("evaluation", "head and loss")) == roles.EVALUATION
