"""What a plan makes of recurrent layers: padded rows, missing kernels told with their cost, memory that counts them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from facts.recorded import config, data, decision, machine, models, planned

from loradock.errors import ConfigError
from loradock.facts import COUNTED_TOKENS, ExpertShape, LinearShape, ModelFacts, Recurrence
from loradock.plan import gpu_table, throughput
from loradock.plan.knobs import packing
from loradock.plan.memory.fast import BESIDE_KEPT, FILLED_UP, FastMemory, Setting, Shape
from loradock.plan.memory.peft import Batch, activation_bytes
from loradock.plan.memory.recurrent import in_chunks
from loradock.plan.memory.widths import widths
from loradock.plan.planner import context_of

COUNTED = Recurrence(
    layers=24,
    missing=("causal-conv1d", "flash-linear-attention"),
    launches=560,
    traffic_bytes=5_009_550_342,
    kept_bytes={"float32": 451_914, "bfloat16": 345_258},
)
"""Of Qwen3.5-9B's gated delta nets."""


def hybrid(recurrence: Recurrence = COUNTED) -> ModelFacts:
    """A model of 32 layers that the fast engine does not serve."""
    return replace(models()["mistral-7b"], decoder="HybridModel", recurrence=recurrence)


def setting(length: int) -> Setting:
    """NF4 by the fast engine on a GPU, documents of this length."""
    return Setting(
        quantization="nf4",
        double_quant=True,
        dtype="bfloat16",
        rank=16,
        on_gpu=True,
        has_flash=True,
        longest_tokens=length,
        mean_tokens=length,
    )


def test_rows_of_a_model_with_recurrent_layers_are_padded_however_unlike_they_are() -> None:
    uneven = data(mean=100, longest=1024)
    plain = replace(hybrid(), recurrence=None)
    assert planned(facts=machine("h200"), model=plain, data=uneven).packing.value
    plan = planned(facts=machine("h200"), model=hybrid(), data=uneven)
    assert plan.packing.value is False
    assert plan.packing.why == "its recurrent layers would carry their state from one document into the next"
    assert packing.propose(context_of(plan, config(), facts=machine("h200"))) == ()


def test_packing_that_was_asked_for_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"train\.packing cannot be used with .*recurrent layers") as refused:
        planned(model=hybrid(), config=config(train={"packing": True}))
    assert refused.value.hint == "--set train.packing=false"


def test_what_missing_kernels_cost_is_estimated_from_what_was_counted_and_the_gpu() -> None:
    estimates = []
    for gpu in ("a10", "h200"):
        why = decision(planned(facts=machine(gpu), model=hybrid()), "kernels").why
        assert "24 recurrent layers in torch: causal-conv1d and flash-linear-attention not installed" in why
        found = re.search(r"an estimated ([\d,]+) ms and ([\d,]+) MiB for a row of 512 tokens", why)
        assert found, why
        estimates.append(tuple(int(each.replace(",", "")) for each in found.groups()))
    (slow, kept), (fast, also) = estimates
    assert kept == also == round(345_258 * 24 * COUNTED_TOKENS / 2**20)
    assert 5e9 * 24 / 4.8e12 * 1e3 < fast < slow < 5e9 * 24 / 0.3e12 * 1e3


def test_a_cpu_has_no_such_kernels_and_installed_ones_are_not_missed() -> None:
    assert "have kernels for GPUs alone" in decision(planned(facts=machine(), model=hybrid()), "kernels").why
    there = decision(planned(model=hybrid(Recurrence(layers=24))), "kernels")
    assert (there.value, there.why) == ("none", "the peft engine computes with the model's own modules")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_memory_counts_what_each_recurrent_layer_keeps_and_recomputed_one_of_them(checkpointing: bool) -> None:
    asked = config(train={"micro_batch": 1, "checkpointing": checkpointing, "packing": False})
    plain, more = (
        planned(facts=machine("h200"), model=model, config=asked).memory_bytes["activations"]
        for model in (replace(hybrid(), recurrence=None), hybrid())
    )
    layers = 1 if checkpointing else 24
    assert more - plain == pytest.approx(345_258 * layers * data().longest_tokens, rel=1e-3)


def test_no_graph_is_made_of_recurrent_layers_and_what_no_kernel_computes_of_them_takes_its_time() -> None:
    served = replace(hybrid(), decoder="Qwen3_5TextModel")
    plan = planned(facts=machine("h200"), model=served)
    assert (plan.engine.value, plan.packing.value) == ("fast", True)
    assert decision(plan, "cuda_graphs").why == "launches of its recurrent layers vary with the documents"
    assert "24 recurrent layers in torch" in decision(plan, "kernels").why
    memory, without = (
        planned(facts=machine("h200"), model=model, config=config(train={"micro_batch": 1})).memory_bytes
        for model in (served, replace(served, recurrence=None))
    )
    assert memory["activations"] == without["activations"]
    assert 345_258 < (memory["in flight"]) / data().longest_tokens < 3 * 345_258, "one layer's is there at a time"
    shape = Shape(tokens=2048, checkpointed=0)
    settings = setting(512)
    rows, rates = throughput.Rows(mean_tokens=512.0, supervised_share=1.0), throughput.rates_of(gpu_table.named("h200"))
    parts = throughput.fast_seconds(widths(served, rank=16), shape, settings, tokens=2048, rows=rows, rates=rates)
    assert parts["recurrence"] == pytest.approx(24 * 4 / 3 * 5_009_550_342 * 4 / rates.bytes, rel=1e-6)


def in_flight(*, tokens: int, length: int, chunk: int, checkpointed: int = 32) -> int:
    """What a pass of documents of this length has in flight by the fast engine."""
    model = hybrid(replace(COUNTED, chunk_tokens=chunk))
    return FastMemory(model, setting(length)).in_flight(Shape(tokens=tokens, checkpointed=checkpointed))


def test_a_short_document_costs_a_chunk_and_no_more_are_computed_together_than_the_bound() -> None:
    kept = 345_258 * BESIDE_KEPT
    long, short = (in_flight(tokens=640, length=length, chunk=64) for length in (64, 16))
    assert short - long == pytest.approx(640 * 3 * FILLED_UP * kept, rel=1e-6)
    large, larger = (in_flight(tokens=tokens, length=16, chunk=256) for tokens in (8192, 32768))
    small = in_flight(tokens=8192, length=16, chunk=1)
    assert large == small, "both are bounded"
    assert larger < 4 * large
    assert in_flight(tokens=8192, length=8192, chunk=64) - large == pytest.approx(4096 * kept, rel=1e-2)
    assert [in_chunks(length, chunk=256) for length in (1, 65, 128, 200, 257)] == [64, 128, 128, 256, 512]


def test_rows_that_peft_pads_are_filled_up_to_whole_chunks() -> None:
    batch = Batch(rows=8, length=24)
    for checkpointing, layers in ((False, 24), (True, 1)):
        more, plain = (
            activation_bytes(hybrid(counted), batch, checkpointing=checkpointing, dtype="bfloat16")
            for counted in (replace(COUNTED, chunk_tokens=256), COUNTED)
        )
        assert more - plain == pytest.approx(layers * 8 * (256 - 24) * 345_258, rel=1e-6)


def test_what_goes_into_a_recurrence_of_a_mixture_is_kept_like_queries_keys_and_values() -> None:
    dense = models()["mistral-7b"]
    pair = (("gate_up_proj", 1536, dense.hidden), ("down_proj", dense.hidden, 768))
    experts = tuple(
        ExpertShape(name=f"model.layers.{layer}.mlp.experts.{name}", count=64, active=4, rows=rows, columns=columns)
        for layer in range(dense.layers)
        for name, rows, columns in pair
    )
    mixture = replace(dense, experts=experts)
    inputs = tuple(
        LinearShape(name=f"model.layers.{layer}.linear_attn.{name}", rows=rows, columns=dense.hidden)
        for layer in range(dense.layers)
        for name, rows in (("in_proj_qkv", 8192), ("in_proj_z", 4096))
    )
    hybrid_mixture = replace(mixture, linears=(*mixture.linears, *inputs))
    assert widths(hybrid_mixture, rank=16).projected == widths(mixture, rank=16).projected + 8192 + 4096
