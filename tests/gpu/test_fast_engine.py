"""What a GPU can tell of the fast engine: bits of cached weights, attention, kernels, graphs, the whole model.

On the stand-in GPU they run in CI; its numbers are a CPU's, and shapes of real models only run on a GPU:
scripts/test tests/gpu -rA -s. docs/gpu.md keeps the answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakegpu.environment import has_real_gpu
from families import make_model
from jobs import job_of

from loradock.training.backends.fast import self_check
from loradock.training.backends.fast.attention.base import Documents, Rule
from loradock.training.backends.fast.attention.flash_torch import FlashTorch
from loradock.training.backends.fast.attention.per_document import PerDocument
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.batch import FlatBatch, flatten
from loradock.training.backends.fast.graphs import Graphs, cuda_capture
from loradock.training.backends.fast.kernels import kernels_for
from loradock.training.job import Job

pytestmark = [pytest.mark.fakegpu(real=True), pytest.mark.thin(2)]

IS_REAL = has_real_gpu()
REAL_SHAPES = [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (2048, 2048), (256, 2048)]
SHAPES = REAL_SHAPES if IS_REAL else [(64, 128)]
"""Of matrices. The stand-in's products are a CPU's: its one small shape tries the code, a GPU's the bits."""
TOKENS = [2048, 4096, 16384] if IS_REAL else [2048]
HEADS, KEYS, SIZE, BUDGET = (32, 8, 128, 4096) if IS_REAL else (4, 2, 64, 2048)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Job:
    shape = {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_hidden_layers": 4 if IS_REAL else 1,
    }
    folder = tmp_path_factory.mktemp("card")
    settings = ("engine=fast", "train.micro_batch=8", "train.global_batch=16")
    return job_of(folder / "run", *settings, model=make_model(folder / "model", "llama", **shape), data=rows)


def batch_of(job: Job, *, multiple: int, documents_multiple: int = 1) -> FlatBatch:
    micro_batch, longest = job.steps[0].micro_batches[0], job.plan.data.limit_tokens
    batch = flatten(
        micro_batch, pad_token_id=0, longest=longest, multiple=multiple, documents_multiple=documents_multiple
    )
    return batch.to(torch.device("cuda"))


@pytest.mark.thin(4)
@pytest.mark.parametrize("tokens", TOKENS)  # below 1536 bitsandbytes has a kernel of its own
@pytest.mark.parametrize("shape", SHAPES)
def test_cached_weights_give_the_bits_of_bitsandbytes(shape: tuple[int, int], tokens: int) -> None:
    from bitsandbytes import functional, matmul_4bit

    quantised, state = functional.quantize_4bit(
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02, quant_type="nf4", compress_statistics=True
    )
    x = torch.randn(tokens, shape[1], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    y: torch.Tensor = matmul_4bit(x, quantised.t(), quant_state=state)  # pyright: ignore[reportAssignmentType]
    y.backward(torch.ones_like(y))
    dense = functional.dequantize_4bit(quantised, state)
    assert x.grad is not None
    assert torch.equal(y, torch.mm(x.detach(), dense.t()))
    assert torch.equal(x.grad, torch.mm(torch.ones_like(y), dense))


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_attention_over_documents_is_that_of_each_alone(
    window: int | None, has_sinks: bool, deterministic: bool
) -> None:
    bounds = (0, 166, 170, 900, 1924, BUDGET)
    repeated = torch.tensor([*bounds, *[BUDGET] * 26], dtype=torch.int32, device="cuda")
    documents = Documents(bounds=bounds, cu_seqlens=repeated, longest=BUDGET)
    sinks = torch.linspace(-2, 8, HEADS, device="cuda") if has_sinks else None
    rule = Rule(scale=SIZE**-0.5, window=window, softcap=None, sinks=sinks)
    q, k, v = (torch.randn(BUDGET, n, SIZE, device="cuda", dtype=torch.bfloat16) for n in (HEADS, KEYS, KEYS))
    torch.use_deterministic_algorithms(deterministic)
    try:
        out, saved = FlashTorch().forward(q, k, v, documents, rule)
        found = FlashTorch().backward(torch.ones_like(out), q, k, v, out, saved, documents, rule)
        again = FlashTorch().backward(torch.ones_like(out), q, k, v, out, saved, documents, rule)
    finally:
        torch.use_deterministic_algorithms(False)
    expected_out, kept = PerDocument().forward(q, k, v, documents, rule)
    expected = PerDocument().backward(torch.ones_like(out), q, k, v, expected_out, kept, documents, rule)
    torch.testing.assert_close(out, expected_out, rtol=2e-2, atol=2e-2)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 2e-2 * other.norm()
    if deterministic:
        assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


@pytest.mark.thin(4)
def test_the_engine_computes_what_peft_computes_with_either_kernels(job: Job) -> None:
    model, _ = build(job)
    assert self_check.check(model, job).is_sound
    gradients = []
    for asked in ("triton", "torch"):
        kernels = kernels_for(torch.device("cuda"), asked)
        model.head.kernels = kernels
        for layer in model.layers:
            layer.kernels = kernels
        model.adapters.gradient.zero_()
        model.loss_and_gradients(batch_of(job, multiple=64), scale=1.0)
        gradients.append(model.adapters.gradient.clone())
    assert (gradients[0] - gradients[1]).norm() <= 3e-2 * gradients[1].norm()


@pytest.mark.thin(4)
def test_a_captured_micro_step_gives_what_the_ordinary_one_gives(job: Job) -> None:
    model, _ = build(job)
    failures: list[str] = []
    graphs = Graphs(model, capture=cuda_capture(), on_failure=failures.append)
    batch = batch_of(job, multiple=512, documents_multiple=32)
    for _ in range(3):
        model.adapters.gradient.zero_()
        loss = graphs.loss_and_gradients(batch, scale=0.5)
    found = model.adapters.gradient.clone()
    model.adapters.gradient.zero_()
    expected = model.loss_and_gradients(batch, scale=0.5)
    assert not failures
    assert len(graphs.graphs) == 1
    assert float(loss) == pytest.approx(float(expected), rel=1e-3)
    assert (found - model.adapters.gradient).norm() <= 1e-2 * found.norm()


@pytest.mark.thin(4)
def test_after_a_capture_that_fails_dropout_works_and_the_stream_is_the_one_before(job: Job) -> None:
    """Reading a value back is not permitted while a stream is captured."""
    model, _ = build(job)
    failures: list[str] = []
    real, stream, batch = model.loss_and_gradients, torch.cuda.current_stream(), batch_of(job, multiple=512)

    def reading(*arguments: Any, **more: Any) -> torch.Tensor:
        loss = real(*arguments, **more)
        torch.nn.functional.dropout(loss, 0.5)  # the generators are drawn from in the capture, too
        loss.item()
        return loss

    model.loss_and_gradients = reading
    graphs = Graphs(model, capture=cuda_capture(), on_failure=failures.append)
    for _ in range(3):
        graphs.loss_and_gradients(batch, scale=0.5)
    assert len(failures) == 1
    assert not graphs.graphs
    assert torch.cuda.current_stream() == stream
    assert torch.nn.functional.dropout(torch.ones(1000, device="cuda"), 0.5).count_nonzero() < 1000
