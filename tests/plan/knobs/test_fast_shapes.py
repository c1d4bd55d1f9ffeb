"""The fast engine's budget, checkpointed layers and cached weights: what is chosen on which GPU, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from facts.recorded import config, data, decision, machine, models, planned

from loradock.errors import ConfigError, OutOfMemory
from loradock.facts import DataFacts, ModelFacts
from loradock.plan import planner
from loradock.plan.plan import Plan

SHORT = data(limit=512, longest=512)
LONG = data(mean=1800, longest=2048, limit=2048)


def shape(plan: Plan) -> tuple[int, int, int]:
    return plan.micro_batch.value, plan.checkpointed_layers.value, plan.cached_layers.value


def on(gpu: str | None, *, of: str = "mistral-7b", rows: DataFacts = SHORT, **asked: Any) -> Plan:
    return planned(facts=machine(gpu), model=models()[of], data=rows, config=config(**asked))


def bytes_left(plan: Plan, gpu: str) -> int:
    return int(machine(gpu).gpu.memory_bytes * 0.9) - plan.memory_bytes["total"]


@pytest.mark.parametrize(("model", "gpu"), [("mistral-7b", "a10"), ("tinyllama-1.1b", "2080ti"), ("llama-3-8b", "t4")])
@pytest.mark.parametrize("limit", [512, 1024])
def test_what_a_memory_poor_gpu_trains_fits_with_room_and_beats_the_settings_it_is_known_by(
    model: str, gpu: str, limit: int
) -> None:
    asked = config(train={"global_batch": 64})
    facts = planner.machine_with(gpu)
    plan = planner.make(asked, facts=facts, model=models()[model], data=data(limit=limit, longest=limit))
    assert plan.memory_bytes["total"] <= 0.9 * facts.gpu.memory_bytes
    assert plan.micro_batch.value * limit >= 1024
    assert plan.checkpointed_layers.value < 8
    assert 500 < planner.tokens_per_second(plan, asked, facts=facts) < 10_000


def test_memory_goes_to_activations_first_and_to_dense_weights_with_what_is_left() -> None:
    tight = on("t4", of="llama-3-8b", rows=LONG, train={"global_batch": 64})
    roomy = on("h200", rows=LONG, train={"global_batch": 64})
    assert tight.checkpointed_layers.value > 0
    assert tight.cached_layers.value == 0
    assert roomy.checkpointed_layers.value == 0
    assert roomy.cached_layers.value == 32
    between = on("a10", train={"global_batch": 64})
    assert between.checkpointed_layers.value == 0
    assert 0 < between.cached_layers.value < 32


def test_one_layer_less_checkpointed_or_one_more_cached_would_not_fit() -> None:
    tight = on("t4", of="llama-3-8b", rows=LONG, train={"global_batch": 64})
    count = tight.checkpointed_layers.value
    more = on(
        "t4",
        of="llama-3-8b",
        rows=LONG,
        train={"global_batch": 64, "micro_batch": shape(tight)[0], "checkpointing": count - 1},
    )
    assert bytes_left(tight, "t4") >= 0 > bytes_left(more, "t4")
    cached = on("a10", train={"global_batch": 64})
    each = 218_103_808 * 2
    assert 0 <= bytes_left(cached, "a10") < each
    assert cached.memory_bytes["dense weights"] == each * cached.cached_layers.value


def test_the_budget_stops_where_a_gpu_is_busy_and_never_exceeds_what_a_step_holds() -> None:
    many = on("b200", of="tinyllama-1.1b", train={"global_batch": 4096})
    assert 8192 <= many.micro_batch.value * 512 <= 16_384
    few = on("b200", of="tinyllama-1.1b", train={"global_batch": 4})
    assert few.micro_batch.value == 3
    assert "fastest that fits, of 1 to 3 x 512" in decision(few, "micro_batch").why


def test_passes_of_a_step_are_of_like_size() -> None:
    """A second pass for the last few tokens would pay for dequantisation and launches again."""
    plan = on("h200", train={"global_batch": 128})
    tokens, budget = 128 * 166, plan.micro_batch.value * 512
    assert tokens / budget / plan.accumulation.value > 0.85


def test_a_budget_has_room_for_a_full_step_where_rows_differ_and_none_to_spare_where_they_do_not() -> None:
    uneven = on("h200", rows=data(mean=166, limit=512, longest=512), train={"global_batch": 32})
    even = on("h200", rows=data(mean=166, limit=166, longest=166), train={"global_batch": 32})
    mean_step = 32 * 166
    assert 1.15 < uneven.micro_batch.value * 512 / mean_step < 1.35
    assert even.micro_batch.value * 166 == mean_step


def test_a_known_budget_keeps_its_size_and_layers_are_checkpointed_for_it() -> None:
    plan = on("a10", train={"global_batch": 64, "micro_batch": 16})
    assert shape(plan)[0] == 16
    assert 0 < plan.checkpointed_layers.value < 32
    assert plan.checkpointing.value is False
    assert "of 32 layers keep" in decision(plan, "checkpointed_layers").why


@pytest.mark.parametrize(("asked", "layers"), [(True, 32), (False, 0), (5, 5), (0, 0)])
def test_checkpointing_asked_for_is_taken_as_asked(asked: Any, layers: int) -> None:
    plan = on("h200", train={"checkpointing": asked})
    assert decision(plan, "checkpointed_layers").value == layers
    assert decision(plan, "checkpointed_layers").why == "set in the configuration"
    assert plan.checkpointing.value is (layers == 32)


def test_more_layers_than_there_are_and_a_part_of_them_in_trl_are_refused() -> None:
    with pytest.raises(ConfigError, match="33, and mistral-7b has 32 layers"):
        on("h200", train={"checkpointing": 33})
    with pytest.raises(ConfigError, match="all layers or none"):
        on("h200", engine="peft", train={"checkpointing": 5})
    assert on("h200", engine="peft", train={"checkpointing": 32}).checkpointing.value is True


def test_the_trl_engine_caches_nothing_and_says_so() -> None:
    plan = on("h200", engine="peft")
    assert decision(plan, "cached_layers").value == 0
    assert "only the fast engine" in decision(plan, "cached_layers").why
    assert plan.checkpointed_layers.value in (0, 32)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"model": {"cache_weights": 33}}, "has 32 layers"),
        ({"model": {"cache_weights": 1, "quantization": "none"}}, "not NF4"),
        ({"model": {"cache_weights": 1}, "engine": "peft"}, "only the fast engine"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        on("h200", **asked)


def test_cached_layers_asked_for_are_taken_and_make_room_by_checkpointing() -> None:
    plan = on("a10", model={"cache_weights": 20}, train={"global_batch": 64, "micro_batch": 8})
    assert plan.cached_layers.value == 20
    assert plan.checkpointed_layers.value > 0


def test_whole_weights_have_nothing_to_cache() -> None:
    plan = on("h200", model={"quantization": "none"})
    assert plan.cached_layers.value == 0
    assert plan.memory_bytes["dense weights"] == plan.memory_bytes["expanded scales"] == 0


def test_a_soft_capped_model_has_room_for_its_scores_unless_flash_attn_computes_them() -> None:
    plain, capped = models()["mistral-7b"], replace(models()["mistral-7b"], capped_heads=32)
    asked: dict[str, Any] = {"data": LONG, "config": config(train={"micro_batch": 1, "checkpointing": True})}

    def needed(model: ModelFacts, *, flash: bool) -> int:
        return planned(facts=machine("h200", flash=flash), model=model, **asked).memory_bytes["in flight"]

    scores = 2048**2 * 32 * 14
    assert needed(plain, flash=False) == needed(plain, flash=True) == needed(capped, flash=True)
    assert needed(capped, flash=False) > scores > needed(capped, flash=True)
    sdpa = planned(
        facts=machine("h200", flash=True),
        model=capped,
        data=LONG,
        config=config(model={"attention": "sdpa"}, train={"micro_batch": 1, "checkpointing": True}),
    )
    assert sdpa.memory_bytes["in flight"] == needed(capped, flash=False)


def test_what_no_shape_fits_is_refused_with_the_first_thing_that_helps() -> None:
    rows = data(mean=30_000, longest=32_768, limit=32_768)
    with pytest.raises(OutOfMemory, match="one row of 32768 tokens") as refused:
        on("rtx-2080-ti", rows=rows)
    assert "--set data.max_length=16384" in (refused.value.hint or "")
    with pytest.raises(OutOfMemory) as refused:
        on("t4", of="llama-3-8b", rows=LONG, train={"checkpointing": False})
    assert refused.value.hint == "--set train.checkpointing=true"
    with pytest.raises(OutOfMemory) as refused:
        on("t4", of="llama-3-8b", model={"cache_weights": 30}, rows=LONG)
    assert refused.value.hint == "--set model.cache_weights=auto"


def test_a_rank_whose_optimiser_does_not_fit_is_sent_to_the_engine_that_pages_it() -> None:
    with pytest.raises(OutOfMemory) as refused:
        on("t4", rows=data(mean=900), lora={"rank": 192})
    assert "--set engine=peft" in (refused.value.hint or "")
