"""The kernels in plain torch against transformers' modules, their autograd, and torch's own cross entropy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

from loradock.training.backends.fast.kernels import Activation, kernels_for, plain

ROWS, WIDTH, EPS = 7, 40, 1e-5
HF_NAMES = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu"}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ACTIVATIONS: list[Activation] = ["silu", "gelu_tanh", "gelu"]


@pytest.fixture(autouse=True)
def _same_numbers_in_chunks_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(plain, "CPU_ELEMENTS_AT_ONCE", 128 // torch.get_num_threads())


def strided(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers as a column slice of a wider tensor."""
    return torch.randn(*shape[:-1], shape[-1] + 5).to(dtype)[..., 3 : 3 + shape[-1]]


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Of values near 1: float32 to its last bits, 16-bit to a few roundings of their own (the modules round more)."""
    near = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=near, atol=near)


def norm_module(offset: bool, dtype: torch.dtype) -> nn.Module:
    module = (Gemma2RMSNorm if offset else LlamaRMSNorm)(WIDTH, eps=EPS)
    assert isinstance(module.weight, nn.Parameter)
    nn.init.normal_(module.weight, mean=0.0 if offset else 1.0, std=0.3)
    return module.to(dtype).requires_grad_(False)


def table(positions: int, rotated: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [positions, rotated], halves duplicated, with the scale of 1.2 that a long-context model has."""
    angle = torch.outer(torch.arange(positions), 10000 ** (-torch.arange(0, rotated, 2) / rotated)).repeat(1, 2)
    return angle.cos() * 1.2, angle.sin() * 1.2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [False, True])
def test_a_norm_and_its_gradient_are_the_modules_bit_for_bit_forwards(offset: bool, dtype: torch.dtype) -> None:
    module = norm_module(offset, dtype)
    weight = module.weight
    assert isinstance(weight, Tensor)
    x, dy = strided(ROWS, WIDTH, dtype=dtype).requires_grad_(), strided(ROWS, WIDTH, dtype=dtype)
    expected = module(x)
    expected.backward(dy)
    assert x.grad is not None

    with torch.no_grad():
        y, rstd = plain.rms_norm(x, weight, EPS, offset=offset)
        dx = plain.rms_norm_backward(dy, x, rstd, weight, offset=offset)
        residual = strided(ROWS, WIDTH, dtype=dtype)
        before = residual.clone()
        summed = plain.rms_norm_backward(dy, x, rstd, weight, offset=offset, into=residual)

    assert y.is_contiguous()
    assert y.dtype == dx.dtype == dtype
    assert (rstd.dtype, rstd.shape) == (torch.float32, (ROWS,))
    assert torch.equal(y, expected)
    assert_near(dx, x.grad)
    assert summed is residual
    assert_near(summed, before + x.grad)


def test_a_norm_keeps_the_inputs_dtype_when_its_weight_is_float32() -> None:
    y, _ = plain.rms_norm(torch.ones(2, 4, dtype=torch.bfloat16), torch.full((4,), 1.5), EPS, offset=False)
    assert y.dtype == torch.bfloat16
    assert y.tolist() == [[1.5] * 4] * 2


@pytest.mark.parametrize("rotated", [16, 10])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_is_transformers_and_its_transpose_is_autograds(dtype: torch.dtype, rotated: int) -> None:
    cos, sin = table(30, rotated)
    positions = torch.tensor([0, 1, 2, 0, 29, 1, 0])
    row = strided(ROWS, 6 * 16, dtype=dtype)
    queries = row[:, 16 : 5 * 16].unflatten(1, (4, 16))  # as in a fused projection of queries, keys and values
    x = queries.clone().requires_grad_()
    expected, _ = apply_rotary_pos_emb(x, x, cos[positions], sin[positions])
    dy = torch.randn(ROWS, 4, 16).to(dtype)
    expected.backward(dy.to(expected.dtype))
    before = row.clone()

    assert plain.rope_(queries, cos, sin, positions.int()) is queries
    plain.rope_(dy, cos, sin, positions, sign=-1)

    assert torch.equal(queries, expected.to(dtype))
    assert torch.equal(row[:, :16], before[:, :16])
    assert torch.equal(row[:, 80:], before[:, 80:])
    assert x.grad is not None
    assert_near(dy, x.grad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_interleaved_rope_is_that_of_ernie(dtype: torch.dtype) -> None:
    cos, sin = table(30, 16)
    positions = torch.tensor([0, 1, 2, 0, 29, 1, 0])
    x = torch.randn(ROWS, 4, 16).to(dtype).requires_grad_()
    expected, _ = modeling_ernie4_5_moe.apply_rotary_pos_emb(x, x, cos[positions], sin[positions])
    dy = torch.randn(ROWS, 4, 16).to(dtype)
    expected.backward(dy)
    found = plain.rope_(x.detach().clone(), cos, sin, positions, is_interleaved=True)
    assert torch.equal(found, expected)
    assert x.grad is not None
    assert_near(plain.rope_(dy, cos, sin, positions, sign=-1, is_interleaved=True), x.grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_a_gate_and_its_gradients_are_autograds(act: Activation, dtype: torch.dtype) -> None:
    both = strided(ROWS, 2 * WIDTH, dtype=dtype)
    g, u = both.chunk(2, dim=-1)
    graph_g, graph_u = g.clone().requires_grad_(), u.clone().requires_grad_()
    expected = ACT2FN[HF_NAMES[act]](graph_g) * graph_u
    da = strided(ROWS, WIDTH, dtype=dtype)
    expected.backward(da)
    assert graph_g.grad is not None
    assert graph_u.grad is not None

    forward = plain.gate(g, u, act)
    again = plain.gate_backward_(da, g, u, act)

    assert again is da
    assert forward.is_contiguous()
    assert_near(again, forward)  # torch's vector and scalar erf differ in the last bit
    assert_near(forward, expected.detach())
    assert_near(both, torch.cat([graph_g.grad, graph_u.grad], dim=-1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_clamped_gate_is_that_of_gpt_oss(dtype: torch.dtype) -> None:
    experts, apply_gate = SimpleNamespace(alpha=1.702, limit=2.0), vars(GptOssExperts)["_apply_gate"]
    both, da = strided(ROWS, 2 * WIDTH, dtype=dtype).mul_(2), strided(ROWS, WIDTH, dtype=dtype)
    graph = both.float().clone().requires_grad_()
    expected: torch.Tensor = apply_gate(experts, graph)
    expected.backward(da.float())
    assert graph.grad is not None
    before = both.clone()
    forward = plain.clamped_gate(both, alpha=1.702, limit=2.0)
    assert torch.equal(both, before)
    again = plain.clamped_gate_backward_(da, both, alpha=1.702, limit=2.0)
    assert again is da
    assert_near(again, forward)  # torch's vector and scalar sigmoid differ in the last bit
    assert_near(forward, expected.detach().to(dtype))
    assert_near(both, graph.grad.to(dtype))
    assert 0 < (both == 0).float().mean() < 0.9


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_and_its_gradient_are_torchs(dtype: torch.dtype, softcap: float | None) -> None:
    logits, targets = strided(8, 33, dtype=dtype).mul_(3), torch.randint(33, (8,))
    weights = torch.tensor([0.5, 1.0, 0.0, 2.0, 0.0, 0.25, 1.0, 0.125])
    x = logits.float().clone().requires_grad_()
    capped = x if softcap is None else softcap * torch.tanh(x / softcap)
    expected = weights * nn.functional.cross_entropy(capped, targets, reduction="none")
    expected.sum().backward()
    assert x.grad is not None
    untouched = logits.clone()

    alone = plain.cross_entropy_(logits, targets, weights, softcap=softcap, with_gradient=False)
    assert torch.equal(logits, untouched)
    losses = plain.cross_entropy_(logits, targets, weights, softcap=softcap)

    assert torch.equal(alone, losses)
    assert losses.dtype == torch.float32
    assert_near(losses, expected.detach())
    assert_near(logits, x.grad.to(dtype))
    assert not logits[weights == 0].any()


def test_a_row_of_padding_gives_zeros_whatever_it_holds() -> None:
    logits = torch.randn(3, 5)
    logits[1] = float("nan")
    losses = plain.cross_entropy_(logits, torch.tensor([0, 4, 2]), torch.tensor([1.0, 0.0, 1.0]))
    assert losses.isfinite().all()
    assert losses[1] == 0
    assert logits[1].tolist() == [0.0] * 5


def test_the_cpu_gets_the_plain_kernels_unless_triton_is_asked_for() -> None:
    assert kernels_for(torch.device("cpu"), "auto").NAME == "torch"
    assert kernels_for(torch.device("cuda"), "torch").NAME == "torch"
