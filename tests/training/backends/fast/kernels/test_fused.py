"""The Triton kernels without a GPU: interpreted against plain torch, and compiled for every card as they are called."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from torch._subclasses import FakeTensorMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from loradock.errors import ConfigError
from loradock.training.backends.fast.kernels import Dropout, fused, kernels_for, launch

POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
INTERPRETED = Path(__file__).with_name("interpreted.py")
Compile = Callable[[Callable[[], object]], dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture(autouse=True)
def _fake_gpu() -> Iterator[None]:
    with FakeTensorMode(), torch.device("cuda"):
        yield


def source_of(kernel: Any, args: tuple[Any, ...], constexprs: dict[str, Any]) -> ASTSource:
    """What Triton compiles for this call: the types of its arguments, and that pointers and strides are aligned."""
    signature = dict.fromkeys(kernel.arg_names, "constexpr")
    attributes = {}
    for place, (name, value) in enumerate(zip(kernel.arg_names, args, strict=False)):
        match value:
            case Tensor():
                signature[name] = POINTERS[value.dtype]
            case int():
                signature[name] = "i32"
            case float():
                signature[name] = "fp32"
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0 and name not in ("rows", "first")):
            attributes[(place,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constexprs=constexprs, attrs=attributes)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Compile]:
    """Compiles the one kernel that a call launches for a compute capability: its `ptx`, `cubin` and so on."""

    def for_card(capability: int) -> Compile:
        def compile_call(call: Callable[[], object]) -> dict[str, Any]:
            launched: list[dict[str, Any]] = []

            def in_place(kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int, **constexprs: Any) -> None:
                source, target = source_of(kernel, args, constexprs), GPUTarget("cuda", capability, 32)
                launched.append(triton.compile(source, target=target, options={"num_warps": num_warps}).asm)

            monkeypatch.setattr(launch, "launch", in_place)
            call()
            assert len(launched) == 1
            return launched[0]

        return compile_call

    return for_card


@pytest.mark.thin(6)
def test_interpreted_they_equal_the_plain_ones() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", str(INTERPRETED)],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@pytest.mark.thin(6)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("capability", [75, 80, 86, 90, 100])
def test_each_compiles_for_every_card(capability: int, dtype: torch.dtype, compiled: Callable[[int], Compile]) -> None:
    """Also bfloat16 for 7.5: such a card computes it in float32, which is all that is done with it here."""
    compile_call = compiled(capability)
    x, weight, wide = torch.empty(64, 4096, dtype=dtype), torch.empty(4096, dtype=dtype), torch.empty(64, 2 * 14336)
    g, u = wide.to(dtype).chunk(2, dim=-1)
    rstd, table, positions = torch.empty(64), torch.empty(512, 128), torch.empty(64, dtype=torch.int32)
    logits, targets = torch.empty(64, 128256, dtype=dtype), torch.empty(64, dtype=torch.int64)
    for call in (
        lambda: fused.rms_norm(x, weight, 1e-5, offset=False),
        lambda: fused.rms_norm_backward(x, x, rstd, weight, offset=False, into=x),
        lambda: fused.rope_(x.unflatten(1, (32, 128)), table, table, positions),
        lambda: fused.gate(g, u, "silu"),
        lambda: fused.gate_backward_(g, g, u, "silu"),
        lambda: fused.cross_entropy_(logits, targets, rstd),
    ):
        asm = compile_call(call)
        assert asm["cubin"]
        assert "ld.global.v4" in asm["ptx"]  # 16 bytes at a time


@pytest.mark.thin(6)
def test_so_do_their_other_forms(compiled: Callable[[int], Compile]) -> None:
    compile_call = compiled(90)
    x, rstd = torch.empty(64, 2560, dtype=torch.bfloat16), torch.empty(64)
    table, positions, targets = torch.empty(512, 64), torch.empty(64, dtype=torch.int64), torch.empty(64).long()
    for call in (
        lambda: fused.rms_norm(x, x[0], 1e-5, offset=True),
        lambda: fused.rms_norm_backward(x, x, rstd, x[0], offset=True),
        lambda: fused.rms_norm(x.view(-1, 80), x[0, :80], 1e-5, offset=False),
        lambda: fused.rope_(x.unflatten(1, (32, 80)), table, table, positions, sign=-1),
        lambda: fused.rope_(x.unflatten(1, (32, 80)), table, table, positions, is_interleaved=True),
        lambda: fused.clamped_gate(x, alpha=1.702, limit=7.0),
        lambda: fused.clamped_gate_backward_(x[:, :1280], x, alpha=1.702, limit=7.0),
        lambda: fused.gate(x, x, "gelu_tanh"),
        lambda: fused.gate(x, x, "gelu"),
        lambda: fused.gate_backward_(x, x, x, "gelu_tanh"),
        lambda: fused.gate_backward_(x, x, x, "gelu"),
        lambda: fused.cross_entropy_(x, targets, rstd, softcap=30.0),
        lambda: fused.cross_entropy_(x, targets, rstd, with_gradient=False),
    ):
        assert compile_call(call)["cubin"]


@pytest.mark.thin(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "rank", [pytest.param(8, marks=pytest.mark.full), pytest.param(64, marks=pytest.mark.full), 256]
)
@pytest.mark.parametrize("capability", [75, 80, 90, 100, 120])
def test_dropout_compiles_for_every_card_without_spills(
    capability: int, rank: int, dtype: torch.dtype, compiled: Callable[[int], Compile]
) -> None:
    if capability == 75 and dtype == torch.bfloat16:
        dtype = torch.float16  # what such a card is given
    compile_call = compiled(capability)
    x, a, dh = (torch.empty(*shape, dtype=dtype) for shape in ((256, 4096), (3 * rank, 4096), (256, 3 * rank)))
    dropout = Dropout(torch.empty(256, dtype=torch.int64), 16, 0.05)
    for call in (
        lambda: fused.lora_down(x, a, dropout, rank=rank),
        lambda: fused.lora_down_backward_a(dh, x, dropout, rank=rank, out=a),
        lambda: fused.lora_down_backward_x_(x, dh, a, dropout, rank=rank),
    ):
        usage = resource_usage(compile_call(call)["cubin"])
        if capability > 75:  # where tensor cores are not used the sums take more
            assert " STACK:0 " in usage, usage  # registers that do not fit lie on the stack
        assert int(usage.split(" SHARED:")[1].split()[0]) <= 64 << 10  # the least of these cards


def resource_usage(cubin: bytes) -> str:
    """What cuobjdump tells of a kernel: REG, STACK, SHARED, LOCAL in bytes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_triton_asked_for_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="cpu"):
        kernels_for(torch.device("cpu"), "triton")
