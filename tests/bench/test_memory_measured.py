"""The memory model of the fast engine against the live bytes of its real micro-steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.memory.live import LiveBytes
from bench.memory.measure import Found, Measurement
from bench.memory.models import adapted, no_launches
from bench.train.models import settings
from loradock.plan.memory.fast import FastMemory, Shape
from loradock.training.backends.fast.attention.flash_cpu import FlashCpu
from loradock.training.backends.fast.attention.flash_torch import FlashTorch
from loradock.training.backends.fast.attention.per_document import PerDocument
from loradock.training.backends.fast.kernels import fused, plain

REAL = ("tinyllama-1.1b", "phi-3-mini", "mistral-7b", "llama-3-8b")
LAYERS = 4
MIB = 1 << 20
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.thin(1),
]


def assert_expected(found: Found, *, within: float = 0.1) -> None:
    """All parts within the share asked for; the peak is never expected lower by more than a hundredth."""
    measured, expected = max(found.training[0], found.evaluation), found.training[1]
    assert expected == pytest.approx(measured, rel=within), found
    assert expected > 0.98 * measured, found
    assert found.held[1] == pytest.approx(found.held[0], rel=0.02), found
    assert found.optimizer[1] == pytest.approx(found.optimizer[0], rel=0.001), found


def on_card(name: str, *shapes: Shape) -> list[Found]:
    """Four layers of a real model as a card would hold them, without content."""
    live = LiveBytes()
    with no_launches(), live:
        model: Any = adapted({**settings(name), "num_hidden_layers": LAYERS}, dtype=torch.bfloat16, device="meta")
    with no_launches():
        card = Measurement(model, live, attention=FlashTorch(), kernels=fused, document=166, name=name)
        return [card.of(shape) for shape in shapes]


@pytest.mark.thin(6)
@pytest.mark.parametrize("name", REAL)
def test_a_real_model_keeps_what_is_expected_whatever_is_checkpointed(name: str) -> None:
    for found in on_card(name, *(Shape(tokens=2048, checkpointed=count) for count in (0, 2, LAYERS))):
        assert_expected(found)


def test_dense_weights_take_their_bytes_and_nothing_is_made_dense_beside_them() -> None:
    none, half, every = on_card("mistral-7b", *(Shape(tokens=512, checkpointed=0, cached=n) for n in (0, 2, LAYERS)))
    for found in (none, half, every):
        assert_expected(found)
    layer = 218_103_808 * 2
    assert half.held[0] - none.held[0] == 2 * layer
    assert every.held[0] - none.held[0] == LAYERS * layer
    assert every.training[0] < none.training[0]


@pytest.mark.parametrize(("document", "heads"), [(2048, 16), (512, 32)])
def test_soft_capped_attention_needs_the_scores_of_one_document_too(document: int, heads: int) -> None:
    values = {"model_type": "gemma2", "num_hidden_layers": LAYERS, "hidden_size": 2048, "intermediate_size": 4096}
    values |= {"vocab_size": 2000, "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 64}
    live = LiveBytes()
    with no_launches():
        with live:
            model: Any = adapted(values, dtype=torch.bfloat16, device="meta")
        model.get_input_embeddings().embed_scale = torch.tensor(32.0)  # a number that the engine reads
        card = Measurement(model, live, attention=PerDocument(), kernels=fused, document=document, name="capped")
        setting = replace(card.expected.setting, longest_tokens=document)  # this backend's workspace is seen
        card.expected = FastMemory(card.expected.model, setting)
        for checkpointed in (0, LAYERS):
            assert_expected(card.of(Shape(tokens=2048, checkpointed=checkpointed)))


def test_a_real_nf4_model_on_a_cpu_needs_what_is_expected() -> None:
    values = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": LAYERS, "vocab_size": 2000}
    values |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    live = LiveBytes()
    with live:
        model = adapted({**settings("120m"), **values}, dtype=torch.float32, device="cpu")
    cpu = Measurement(model, live, attention=FlashCpu(), kernels=plain, document=128, name="small")
    for shape in (Shape(tokens=1024, checkpointed=0), Shape(tokens=1024, checkpointed=2, cached=2)):
        assert_expected(cpu.of(shape))


def test_live_bytes_count_each_storage_once_and_until_its_end() -> None:
    live = LiveBytes()
    with live:
        first = torch.zeros(1000, dtype=torch.float32)
        view = first[10:].view(-1, 10)
    assert live.now == live.peak == 4000
    with live.within():
        second = first + 1
        del second
        third = view * 2
    assert (live.now, live.peak) == (4000 + third.numel() * 4, 8000)
    del first, view, third
    assert live.now == 0
