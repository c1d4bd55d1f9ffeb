"""The Triton kernels against plain torch, on the CPU: test_fused runs this file under TRITON_INTERPRET=1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from loradock.training.backends.fast.kernels import Activation, Dropout, fused, kernels_for, plain

EPS = 1e-5
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ACTIVATIONS: list[Activation] = ["silu", "gelu_tanh", "gelu"]


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _ranges_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6's interpreter makes a range's end from an array of one number, which numpy 2.4 no longer converts."""
    patched = interpreter._patch_lang_tensor

    def and_index(tensor: Any, scope: Any) -> None:
        patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", and_index)


def strided(rows: int, *width: int, dtype: torch.dtype) -> Tensor:
    """Random numbers as a column slice of a wider tensor."""
    return torch.randn(rows, *width[:-1], width[-1] + 7).to(dtype)[..., 2 : 2 + width[-1]]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Float32 differs by the order of sums, float16 by its last bit; the interpreter truncates to bfloat16."""
    near = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2, torch.float16: 1e-3}[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=near, atol=near)


def test_triton_is_given_on_the_cpu_where_it_is_interpreted() -> None:
    assert kernels_for(torch.device("cpu"), "triton").NAME == "triton"
    assert kernels_for(torch.device("cuda"), "auto").NAME == "triton"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(3, 2304), (130, 24), (1, 1)])
def test_norms_equal_plain_ones(rows: int, width: int, offset: bool, dtype: torch.dtype) -> None:
    x, dy, weight = strided(rows, width, dtype=dtype), strided(rows, width, dtype=dtype), torch.randn(width).to(dtype)
    into = strided(rows, width, dtype=dtype)
    again = into.clone()

    expected, rstd = plain.rms_norm(x, weight, EPS, offset=offset)
    y, scale = fused.rms_norm(x, weight, EPS, offset=offset)
    dx = fused.rms_norm_backward(dy, x, rstd, weight, offset=offset)
    assert fused.rms_norm_backward(dy, x, rstd, weight, offset=offset, into=into) is into

    assert y.is_contiguous()
    assert_same(y, expected)
    torch.testing.assert_close(scale, rstd)
    assert_same(dx, plain.rms_norm_backward(dy, x, rstd, weight, offset=offset))
    assert_same(into, plain.rms_norm_backward(dy, x, rstd, weight, offset=offset, into=again))


def test_llamas_norm_is_rounded_before_the_weight() -> None:
    x, weight = strided(3, 2304, dtype=torch.float16), torch.randn(2304).half()
    y, expected = (module.rms_norm(x, weight, EPS, offset=False)[0] for module in (fused, plain))
    assert (y != expected).float().mean() < 0.01  # a third, if only the product were rounded


def test_a_float32_norm_weight_serves_a_bfloat16_row() -> None:
    x, weight = strided(2, 24, dtype=torch.bfloat16), torch.randn(24)
    y, rstd = fused.rms_norm(x, weight, EPS, offset=False)
    assert_same(y, plain.rms_norm(x, weight, EPS, offset=False)[0])
    dx = fused.rms_norm_backward(y, x, rstd, weight, offset=False)
    assert_same(dx, plain.rms_norm_backward(y, x, rstd, weight, offset=False))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "width", "rotated", "index"),
    [(1, 16, 16, torch.int64), (5, 24, 20, torch.int32), (40, 12, 6, torch.int64)],
)
def test_rope_equals_the_plain_one_and_touches_nothing_else(
    heads: int, width: int, rotated: int, index: torch.dtype, is_interleaved: bool, dtype: torch.dtype
) -> None:
    row = strided(4, (heads + 2) * width, dtype=dtype)
    expected = row.clone()
    cos, sin = torch.randn(30, rotated // 2).repeat(1, 2), torch.randn(30, rotated // 2).repeat(1, 2)
    positions = torch.tensor([0, 29, 1, 0], dtype=index)
    for sign in (1, -1):
        heads_of = [tensor[:, width:-width].unflatten(1, (heads, width)) for tensor in (row, expected)]
        how: dict[str, Any] = {"sign": sign, "is_interleaved": is_interleaved}
        assert fused.rope_(heads_of[0], cos, sin, positions, **how) is heads_of[0]
        plain.rope_(heads_of[1], cos, sin, positions, **how)
        assert_same(row, expected)
        expected.copy_(row)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # numpy's, for sigmoid(-90)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("width", [40, 1100])
def test_gates_equal_plain_ones(width: int, act: Activation, dtype: torch.dtype) -> None:
    both, da = strided(3, 2 * width, dtype=dtype), strided(3, width, dtype=dtype)
    both[0, 0], both[1, 0] = 60.0, -60.0  # where exponentials end
    expected, expected_da = both.clone(), da.clone()

    (g, u), (expected_g, expected_u) = both.chunk(2, dim=-1), expected.chunk(2, dim=-1)

    assert_same(fused.gate(g, u, act), plain.gate(g, u, act))
    assert fused.gate_backward_(da, g, u, act) is da

    assert_same(da, plain.gate_backward_(expected_da, expected_g, expected_u, act))
    assert_same(both, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [40, 1100])
def test_clamped_gates_equal_plain_ones(width: int, dtype: torch.dtype) -> None:
    both, da = strided(3, 2 * width, dtype=dtype).mul_(2), strided(3, width, dtype=dtype)
    expected, expected_da, how = both.clone(), da.clone(), {"alpha": 1.702, "limit": 2.0}
    assert_same(fused.clamped_gate(both, **how), plain.clamped_gate(both, **how))
    assert fused.clamped_gate_backward_(da, both, **how) is da
    assert_same(da, plain.clamped_gate_backward_(expected_da, expected, **how))
    assert_same(both, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("width", [33, 9001])
def test_cross_entropy_equals_the_plain_one(width: int, softcap: float | None, dtype: torch.dtype) -> None:
    logits = strided(5, width, dtype=dtype).mul_(3)
    expected, untouched = logits.clone(), logits.clone()
    targets = torch.tensor([0, width - 1, 5, 7, width // 2])
    weights = torch.tensor([1.0, 0.5, 0.0, 8.0, 0.25])

    alone = fused.cross_entropy_(logits, targets, weights, softcap=softcap, with_gradient=False)
    assert torch.equal(logits, untouched)
    losses = fused.cross_entropy_(logits, targets, weights, softcap=softcap)

    assert torch.equal(alone, losses)
    assert_same(losses, plain.cross_entropy_(expected, targets, weights, softcap=softcap))
    assert_same(logits, expected)
    assert not logits[2].any()


def test_padding_gives_zeros_whatever_it_holds_and_barred_tokens_are_no_trouble() -> None:
    logits = torch.randn(3, 5000)
    logits[1], logits[2, :4500] = float("nan"), -float("inf")
    expected = logits.clone()
    targets, weights = torch.tensor([0, 4, 4800]), torch.tensor([1.0, 0.0, 1.0])
    losses = fused.cross_entropy_(logits, targets, weights)
    assert_same(losses, plain.cross_entropy_(expected, targets, weights))
    assert_same(logits, expected)
    assert losses[1] == 0
    assert not logits[1].any()


def test_no_rows_are_no_trouble() -> None:
    nothing, targets = torch.empty(0, 8), torch.empty(0, dtype=torch.int64)
    assert fused.rms_norm(nothing, torch.ones(8), EPS, offset=False)[0].shape == (0, 8)
    assert fused.gate(nothing, nothing, "silu").shape == (0, 8)
    assert fused.cross_entropy_(nothing, targets, torch.empty(0)).shape == (0,)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy's: words wrap
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter multiplies bfloat16's raw bits
@pytest.mark.parametrize(("rows", "width", "rank", "adapters"), [(5, 24, 4, 3), (40, 200, 16, 1), (70, 130, 36, 2)])
def test_adapters_under_dropout_equal_plain_ones(
    rows: int, width: int, rank: int, adapters: int, dtype: torch.dtype
) -> None:
    x, dx = strided(rows, width, dtype=dtype), strided(rows, width, dtype=dtype)
    a, dh = torch.randn(adapters * rank, width).to(dtype), torch.randn(rows, adapters * rank).to(dtype)
    dropout = Dropout(torch.randint(-(2**63), 2**63 - 1, (rows,)), 35, 0.3)
    expected_dx, found, expected = dx.clone(), torch.empty_like(a), torch.empty_like(a)

    h, expected_h = (each.lora_down(x, a, dropout, rank=rank) for each in (fused, plain))
    fused.lora_down_backward_a(dh, x, dropout, rank=rank, out=found)
    plain.lora_down_backward_a(dh, x, dropout, rank=rank, out=expected)
    fused.lora_down_backward_x_(dx, dh, a, dropout, rank=rank)
    plain.lora_down_backward_x_(expected_dx, dh, a, dropout, rank=rank)

    for one, other in ((h, expected_h), (found, expected), (dx, expected_dx)):
        scale = other.float().abs().max()
        near = {torch.float32: 4e-6, torch.float16: 2e-3}[dtype]
        assert (one.float() - other.float()).abs().max() <= near * scale
