"""The speed model: what must hold between its figures, and the published one that it can be compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from facts.recorded import models

from loradock.plan import gpu_table, throughput
from loradock.plan.memory.fast import Setting, Shape
from loradock.plan.memory.widths import Widths, widths

ROWS = throughput.Rows(mean_tokens=166, supervised_share=0.6)
SETTING: dict[str, Any] = {
    "quantization": "nf4",
    "double_quant": True,
    "dtype": "bfloat16",
    "rank": 16,
    "on_gpu": True,
    "has_flash": True,
    "longest_tokens": 1024,
    "mean_tokens": 166,
}
LAYERS = 32


def mistral() -> Widths:
    return widths(models()["mistral-7b"], rank=16)


def fast(gpu: str, shape: Shape, **changed: Any) -> dict[str, float]:
    rates = throughput.rates_of(gpu_table.named(gpu))
    setting = Setting(**{**SETTING, **changed})
    return throughput.fast_seconds(mistral(), shape, setting, tokens=shape.tokens, rows=ROWS, rates=rates)


def test_products_are_two_passes_and_a_third_for_what_is_computed_again() -> None:
    plain, half, full = (fast("h200", Shape(tokens=4096, checkpointed=n))["products"] for n in (0, 16, LAYERS))
    assert plain == pytest.approx(2 * 2 * 4096 * 218_103_808 * LAYERS / (989e12 * 0.7))
    second = 1 - 4096 * 14336 / 218_103_808  # the last product is not made again
    assert (half / plain, full / plain) == (pytest.approx(1 + second / 4), pytest.approx(1 + second / 2))


def test_cached_layers_spare_their_dequantisation_and_nothing_else() -> None:
    none, all_of_them = (fast("h200", Shape(tokens=2048, checkpointed=0, cached=n)) for n in (0, LAYERS))
    assert all_of_them["dequantise"] == 0 < none["dequantise"]
    assert {**none, "dequantise": 0} == all_of_them
    some = fast("h200", Shape(tokens=2048, checkpointed=8, cached=30))["dequantise"]
    whole = fast("h200", Shape(tokens=2048, checkpointed=8))["dequantise"]
    checkpointed = 3 - 4096 * 14336 / 218_103_808
    assert some / whole == pytest.approx(2 * checkpointed / (24 * 2 + 8 * checkpointed))


def test_the_cache_is_worth_less_the_larger_a_pass_is() -> None:
    shares = []
    for tokens in (2048, 4096, 16384):
        parts = fast("h200", Shape(tokens=tokens, checkpointed=0))
        shares.append(parts["dequantise"] / sum(parts.values()))
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(0.1, abs=0.04)
    assert shares[2] == pytest.approx(0.013, abs=0.006)


@pytest.mark.parametrize("name", ["tinyllama-1.1b", "phi-3-mini", "mistral-7b", "llama-3-8b"])
def test_a_byte_of_activations_is_worth_more_than_a_byte_of_dense_weights_on_every_gpu(name: str) -> None:
    wide = widths(models()[name], rank=16)
    plain, one = Shape(tokens=4096, checkpointed=0), Shape(tokens=4096, checkpointed=1)
    for gpu in gpu_table.table():
        parts, again = (
            throughput.fast_seconds(
                wide, shape, Setting(**SETTING), tokens=4096, rows=ROWS, rates=throughput.rates_of(gpu)
            )
            for shape in (plain, one)
        )
        kept_bytes = 4096 * 2 * (wide.projected + wide.attended + 2 * wide.inner + wide.hidden)
        by_activations = (again["products"] - parts["products"]) / kept_bytes
        by_cache = parts["dequantise"] / wide.layers / (wide.weights * 2)
        assert 1.7 < by_activations / by_cache < 46, gpu.key


def test_documents_cost_the_host_time_where_no_flash_kernel_takes_them_together() -> None:
    shape = Shape(tokens=4096, checkpointed=0)
    assert fast("a10", shape)["documents"] == 0
    alone = fast("t4", shape, has_flash=False)["documents"]
    assert alone == pytest.approx(4096 / 166 * LAYERS * throughput.DOCUMENT_SECONDS)


def test_capped_scores_cost_traffic_with_the_square_of_a_documents_length_and_none_in_flash_attn() -> None:
    wide, rates = replace(mistral(), capped_heads=32), throughput.rates_of(gpu_table.named("a10"))

    def scores(mean: int, *, checkpointed: int = 0, **changed: Any) -> float:
        shape, rows = Shape(tokens=4096, checkpointed=checkpointed), replace(ROWS, mean_tokens=mean)
        setting = Setting(**{**SETTING, "has_flash": False, **changed})
        return throughput.fast_seconds(wide, shape, setting, tokens=4096, rows=rows, rates=rates)["scores"]

    documents = 4096 / 512
    forward, backward = 14 * 2 + 8, 17 * 2 + 12
    assert scores(512) == pytest.approx(documents * 512**2 * 32 * LAYERS * (2 * forward + backward) / rates.bytes)
    assert scores(1024) == pytest.approx(2 * scores(512))
    again = scores(512, checkpointed=LAYERS) / scores(512)
    assert again == pytest.approx((3 * forward + backward) / (2 * forward + backward))
    assert scores(512, has_flash=True) == fast("t4", Shape(tokens=4096, checkpointed=0), has_flash=False)["scores"] == 0


def test_peft_on_an_a10_is_within_a_third_of_what_was_published() -> None:
    """Mistral-7B, rank 16, checkpointed, batches of 8 x 512 on an A10: 1.46 samples/s were seen, 748 tokens/s."""
    full = throughput.Rows(mean_tokens=512, supervised_share=1.0)
    rates = throughput.rates_of(gpu_table.named("a10"))
    parts = throughput.peft_seconds(mistral(), padded_tokens=4096, rows=full, rates=rates, dtype="bfloat16")
    assert 4096 / sum(parts.values()) == pytest.approx(748, rel=0.33)


def test_a_small_model_in_peft_waits_for_the_host_on_a_fast_gpu_and_not_on_a_slow_one() -> None:
    tiny = widths(models()["tinyllama-1.1b"], rank=16)
    waits = {
        gpu: throughput.peft_seconds(
            tiny, padded_tokens=1024, rows=ROWS, rates=throughput.rates_of(gpu_table.named(gpu)), dtype="bfloat16"
        )["waiting for the host"]
        for gpu in ("h200", "t4")
    }
    assert waits["h200"] > 0.1
    assert waits["t4"] == 0
