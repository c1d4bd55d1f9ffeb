"""The plan's memory against torch's own CUDA allocator, at real shapes: never low, and little above what it reserves.

On a stand-in device whose launches do nothing, so a 7B model's bytes are seen without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench.memory.allocator import FastPasses, Taken, as_a_run_does, empty
from bench.memory.peft import PeftPasses
from loradock.plan.memory.fast import Shape
from loradock.plan.memory.peft import Batch

pytestmark = pytest.mark.fakegpu(compute=False)
SMALL = "tinyllama-1.1b"
"""Where a floor shows: a whole pass of it takes little more than its weights."""


@pytest.fixture(autouse=True)
def as_in_a_run() -> Iterator[None]:
    """The run's allocator, and a device that the next test finds empty."""
    as_a_run_does()
    yield
    empty()


def assert_planned(taken: Taken, *, within: float = 0.05) -> None:
    """Not below what was reserved, nor above it by more than this share."""
    assert 1 <= taken.ratio <= 1 + within, taken


@pytest.mark.thin(6)
@pytest.mark.parametrize("tokens", [4096, pytest.param(8192, marks=pytest.mark.full)])
def test_a_small_models_plan_holds_whatever_is_recomputed_and_kept_dense(tokens: int) -> None:
    passes = FastPasses(SMALL)
    for recomputed in (0, 11, 22):
        for cached in (0, 11):
            assert_planned(passes.of(Shape(tokens=tokens, checkpointed=recomputed, cached=cached)))


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mistral-7b", Shape(tokens=4096, checkpointed=0, cached=4)),
        ("mistral-7b", Shape(tokens=2048, checkpointed=0, cached=4)),
        ("llama-3-8b", Shape(tokens=2048, checkpointed=2)),
        ("phi-3-mini", Shape(tokens=6144, checkpointed=0, cached=18)),
    ],
)
def test_the_plan_of_a_real_model_holds_in_shapes_that_it_chooses_itself(name: str, shape: Shape) -> None:
    assert_planned(FastPasses(name).of(shape))


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("olmo-3-7b", Shape(tokens=16384, checkpointed=8)),  # norms after each half, and of queries and keys
        ("gemma-4-31b", Shape(tokens=16384, checkpointed=0)),  # and heads that are twice as wide in some layers
    ],
)
def test_the_plan_counts_norms_and_the_widest_heads_of_the_layers(name: str, shape: Shape) -> None:
    assert_planned(FastPasses(name, layers=8).of(shape))


@pytest.mark.thin(6)
def test_the_plan_counts_a_long_document_whose_heads_are_too_wide_for_flash_kernels() -> None:
    passes = FastPasses("gemma-4-31b", layers=6, document=8192)
    assert_planned(passes.of(Shape(tokens=8192, checkpointed=0)), within=0.1)


@pytest.mark.thin(6)
def test_the_trl_engines_plan_holds_too_with_and_without_recomputation() -> None:
    passes = PeftPasses("mistral-7b", layers=8)
    for is_recomputed in (False, True):
        assert_planned(passes.of(Batch(rows=8, length=1024), is_recomputed=is_recomputed), within=0.06)


@pytest.mark.thin(6)
@pytest.mark.parametrize("name", ["mixtral-8x7b", "glm-4.5-air"])
def test_the_plan_of_a_mixture_holds_with_adapters_on_its_experts(name: str) -> None:
    passes = FastPasses(name, layers=4)
    for recomputed in (0, 4):
        assert_planned(passes.of(Shape(tokens=8192, checkpointed=recomputed)), within=0.08)


@pytest.mark.thin(6)
def test_the_plan_of_a_mixture_holds_on_the_peft_engine() -> None:
    """Of one whose queries and keys have norms of their own."""
    passes = PeftPasses("qwen3-30b-a3b", layers=4)
    for is_recomputed in (False, True):
        assert_planned(passes.of(Batch(rows=8, length=1024), is_recomputed=is_recomputed), within=0.07)


@pytest.mark.thin(6)
def test_one_room_serves_every_product_so_a_pass_takes_no_memory_for_the_next_layers_matrix() -> None:
    passes = FastPasses(SMALL, layers=4)
    engine = passes.engine(Shape(tokens=512, checkpointed=0))
    weights = [layer.mlp.linears()[0].weight for layer in (engine.layers[0], engine.layers[-1])]
    first, last = (weight.dense(torch.bfloat16) for weight in weights)
    assert first.data_ptr() == last.data_ptr()
    engine.keep_dense(1)
    kept = weights[1].dense(torch.bfloat16)
    assert kept.data_ptr() != weights[0].dense(torch.bfloat16).data_ptr()
