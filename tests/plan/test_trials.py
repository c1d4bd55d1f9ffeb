"""The registry of trials: what each proposes for which baseline, and that all of it can be."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from facts.recorded import config, data, machine, models

from loradock.analysis.step_time import PHASES
from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.errors import LoradockError, OutOfMemory
from loradock.facts import DataFacts
from loradock.plan import planner
from loradock.plan.changed import changed, changed_config, targets_of
from loradock.plan.context import Context
from loradock.plan.planner import context_of
from loradock.plan.row_cut import estimated, lost_shares
from loradock.plan.trial import Trial
from loradock.plan.trials import proposed

pytestmark = pytest.mark.thin(2)

SECTIONS = {"model", "data", "lora", "train", "evaluation", "checkpoints", "logging"}


def baseline(
    *,
    gpu: str | None = "a10",
    of: str = "mistral-7b",
    rows: DataFacts | None = None,
    flash: bool = False,
    **asked: Any,
) -> Context:
    """A configuration on a machine, with its plan; by default Mistral-7B on an A10."""
    wanted, facts = changed_config(config(**asked), ()), machine(gpu, flash=flash)
    plan = planner.make(wanted, facts=facts, model=models()[of], data=rows or data())
    return context_of(plan, wanted, facts=facts)


def names(of: Context) -> list[str]:
    return [trial.name for trial in proposed(of)]


def trial(of: Context, name: str) -> Trial:
    return next(each for each in proposed(of) if each.name == name)


def any_baseline(seed: int) -> Context | None:
    """Some baseline; None where the plan refuses it."""
    draw = random.Random(seed)
    gpu = draw.choice([None, "t4", "a10", "h200"])
    engine = draw.choice(["auto", "fast", "peft"])
    asked: dict[str, Any] = {
        "engine": engine,
        "model": {"quantization": draw.choice(["nf4", "nf4", "none", "int8"])},
        "lora": {"rank": draw.choice([1, 8, 16]), "init": draw.choice(["default", "orthogonal"])},
        "train": {
            "global_batch": draw.choice([4, 6, 16, 64]),
            "micro_batch": draw.choice(["auto", 1, 4]),
            "checkpointing": draw.choice(["auto", True, False]),
            "packing": draw.choice(["auto", True, False]),
            "compile": draw.choice(["off", "default"]),
            "optimizer": draw.choice(["auto", "adamw", "adamw_fused"]),
        },
    }
    rows = data(mean=draw.choice([50, 166, 900]), held_out=draw.choice([0, 200]))
    try:
        return baseline(gpu=gpu, of=draw.choice(["tinyllama-1.1b", "mistral-7b"]), rows=rows, **asked)
    except LoradockError:
        return None


def test_everything_proposed_for_any_baseline_can_be_and_differs_from_it() -> None:
    seen: set[str] = set()
    made = 0
    for seed in range(100):
        before = any_baseline(seed)
        if before is None:
            continue
        made += 1
        trials = proposed(before)
        assert len({each.name for each in trials}) == len(trials), seed
        for each in trials:
            seen.add(each.name)
            assert each.phase in PHASES, each
            new = changed_config(before.config, each.settings)
            assert new != before.config, each
            try:
                after = changed(before, each.settings)
            except OutOfMemory:
                continue
            assert differs(before, after), (seed, each)
    assert made > 25
    assert len(seen) > 20, sorted(seen)


def differs(before: Context, after: Context) -> bool:
    """Whether the plan differs, or what no decision is about: rank, targets, quantisation, synthetic data."""
    untouched = ("lora", "model", "data")
    is_same = all(getattr(before.config, part) == getattr(after.config, part) for part in untouched)
    values = [[decision.value for decision in each.plan.decisions] for each in (before, after)]
    return values[0] != values[1] or not is_same


def test_every_setting_is_one_that_the_command_line_takes() -> None:
    for seed in range(0, 100, 10):
        before = any_baseline(seed)
        for each in proposed(before) if before else ():
            loaded = load(None, overrides=each.settings, needs_inputs=False)
            assert [key.partition("=")[0].split(".")[0] in SECTIONS | {"engine"} for key in each.settings], each
            assert loaded.config == changed_config(RunConfig(), each.settings)


def test_a_larger_micro_batch_is_at_most_the_global_batch_and_only_where_a_step_takes_several_passes() -> None:
    pinned = {"micro_batch": 4, "global_batch": 6, "packing": False}
    assert trial(baseline(engine="peft", train=pinned), "micro-batch-x2").settings == ("train.micro_batch=6",)
    whole = baseline(engine="peft", train={"micro_batch": 6, "global_batch": 6, "packing": False})
    assert "micro-batch-x2" not in names(whole)
    assert trial(whole, "micro-batch-x0.5").settings == ("train.micro_batch=3",)
    assert "micro-batch-x0.5" not in names(baseline(engine="peft", train={"micro_batch": 1}))


def test_what_a_person_pinned_is_tried_as_planned() -> None:
    pinned = baseline(train={"micro_batch": 1, "checkpointing": True, "global_batch": 64})
    assert {"micro-batch-auto", "checkpointing-auto"} <= set(names(pinned))
    assert not {"micro-batch-auto", "checkpointing-auto"} & set(names(baseline()))


def test_the_price_of_shorter_rows_bounds_what_real_rows_lose() -> None:
    draw = random.Random(1)
    for _ in range(200):
        lengths = [min(1024, 1 + int(draw.expovariate(1 / 300))) for _ in range(50)]
        facts = replace(
            data(rows=50, longest=max(lengths)), tokens=sum(lengths), limit_tokens=1024, longest_tokens=max(lengths)
        )
        lost = sum(max(0, length - 512) for length in lengths) / sum(lengths)
        least, most = lost_shares(facts, 512)
        assert least <= lost <= most
        assert sum(length > 512 for length in lengths) <= facts.tokens // 513


def test_shorter_rows_are_not_proposed_where_nothing_would_be_cut_and_carry_a_price_where_it_would() -> None:
    assert "sequence-length-x0.5" not in names(baseline(rows=data(longest=512)))
    split = trial(baseline(rows=data(longest=1024)), "sequence-length-x0.5")
    assert "up to 3,235 of 10,000 rows are split" in split.price
    cut = trial(baseline(rows=data(longest=1024), data={"long_rows": "truncate"}), "sequence-length-x0.5")
    assert cut.settings == ("data.max_length=512",)
    assert "up to 50% of the tokens in up to 3,235 of 10,000 rows are cut off" in cut.price
    assert cut.accuracy_risk == "moderate"
    long = trial(baseline(rows=data(mean=900), data={"long_rows": "truncate"}), "sequence-length-x0.5")
    assert long.price.startswith("43% to 50% of the tokens")
    assert long.accuracy_risk == "high"


def test_the_estimate_of_a_cut_lies_within_its_bounds() -> None:
    for mean in (50, 166, 400, 1000):
        whole = data(mean=mean)
        cut = estimated(whole, 512, long_rows="truncate")
        least, most = lost_shares(whole, 512)
        assert least <= 1 - cut.tokens / whole.tokens <= most + 1e-6
        assert (cut.limit_tokens, cut.longest_tokens) == (512, 512)


def test_each_engine_is_offered_what_it_has() -> None:
    fast, trl = set(names(baseline())), set(names(baseline(engine="peft", train={"packing": False})))
    assert {"weight-cache-none", "engine-peft", "cuda-graphs-on", "checkpointing-half"} <= fast
    assert not {"compile-default", "packing-on", "engine-fast"} & fast
    assert {"compile-default", "packing-on", "engine-fast", "optimizer-adamw", "optimizer-paged-adamw-8bit"} <= trl
    assert not {"checkpointing-half", "weight-cache-all", "cuda-graphs-on"} & trl
    assert not any(name.startswith("optimizer") for name in fast)


def test_a_cpu_is_offered_nothing_that_needs_a_gpu() -> None:
    found = set(names(baseline(gpu=None, of="tinyllama-1.1b", engine="peft")))
    assert not {"cuda-graphs-on", "optimizer-paged-adamw-8bit", "attention-flash"} & found
    assert "attention-flash" in names(baseline(flash=True, model={"attention": "sdpa"}))
    assert "attention-flash" not in names(baseline(model={"attention": "sdpa"}))


def test_the_fast_engine_is_offered_with_the_settings_that_it_does_not_take() -> None:
    asked = baseline(engine="peft", train={"optimizer": "adamw", "compile": "default"})
    assert trial(asked, "engine-fast").settings == ("engine=fast", "train.optimizer=auto", "train.compile=off")
    assert "engine-fast" not in names(baseline(engine="peft", lora={"dora": True}))


def test_what_happens_now_and_then_is_offered_a_tenth_as_often_where_there_are_steps_enough() -> None:
    often = baseline(
        rows=data(rows=1600, held_out=100),
        evaluation={"every": 1},
        checkpoints={"every": 2},
        logging={"every": 1},
        train={"global_batch": 16},
    )
    found = {each.name: each.settings for each in proposed(often)}
    assert found["evaluation-x10"] == ("evaluation.every=10",)
    assert found["checkpoints-x10"] == ("checkpoints.every=10",)  # a run keeps ten of them
    assert found["logging-x10"] == ("logging.every=10",)
    rare = {"every": 1000}  # of 625 steps
    once = baseline(rows=data(held_out=100), evaluation=rare, checkpoints=rare, logging=rare)
    assert not {"evaluation-x10", "checkpoints-x10", "logging-x10"} & set(names(once))


def test_adapters_on_attention_alone_are_proposed_by_the_names_of_the_model() -> None:
    assert trial(baseline(), "lora-targets-attention").settings == ("lora.targets=[q_proj, k_proj, v_proj, o_proj]",)
    assert trial(baseline(of="phi-3-mini"), "lora-targets-attention").settings == ("lora.targets=[qkv_proj, o_proj]",)
    model = models()["mistral-7b"]
    fewer, _ = targets_of(model, ("q_proj", "v_proj"))
    assert len(fewer) == 64
    attended = replace(model, targets=fewer)
    plan = planner.make(
        config(lora={"targets": ["q_proj", "v_proj"]}), facts=machine("a10"), model=attended, data=data()
    )
    asked = config(lora={"targets": ["q_proj", "v_proj"]})
    assert "lora-targets-attention" not in names(context_of(plan, asked, facts=machine("a10")))


def test_a_change_that_memory_cannot_hold_is_still_a_trial() -> None:
    tight = baseline(gpu="t4", rows=data(mean=900))
    assert "quantization-none" in names(tight)
    with pytest.raises(OutOfMemory):
        changed(tight, ("model.quantization=none",))


def test_synthetic_data_only_tells() -> None:
    assert not trial(baseline(), "synthetic-data").is_remedy
    assert "synthetic-data" not in names(baseline(data={"repeat_first": True}))


@pytest.mark.parametrize(("gpu", "is_offered"), [("h100", True), ("a10", True), ("t4", False)])
def test_flash_attn_is_weighed_for_a_named_gpu_by_that_gpu_and_not_by_what_is_installed_here(
    gpu: str, is_offered: bool
) -> None:
    facts = planner.machine_with(gpu)
    wanted = changed_config(config(engine="peft"), ())
    plan = planner.make(wanted, facts=facts, model=models()["mistral-7b"], data=data())
    assert plan.attention.value == "sdpa"
    assert ("built without flash-attn" in plan.attention.why) == is_offered
    found = [each for each in proposed(context_of(plan, wanted, facts=facts)) if each.name == "attention-flash"]
    assert bool(found) == is_offered
    assert all("loradock build --flash-attn" in each.effort for each in found)
    after = changed(context_of(plan, wanted, facts=facts), found[0].settings) if found else None
    assert after is None or after.plan.attention.value == "flash_attention_2"


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_fewer_evaluations_are_proposed_only_as_far_as_early_stopping_can_still_act(patience: int) -> None:
    steps = 60
    asked: dict[str, Any] = {"train": {"max_steps": steps, "early_stopping": patience}, "evaluation": {"every": 2}}
    of = baseline(rows=data(held_out=500), data={"validation": 0.1}, **asked)
    (trial,) = [trial for trial in proposed(of) if trial.name == "evaluation-x10"]
    (every,) = [setting.removeprefix("evaluation.every=") for setting in trial.settings]
    assert steps // int(every) > patience


def test_the_prompt_of_both_answers_is_tried_the_other_way_where_both_can_be_done() -> None:
    def of(loss: str, engine: str = "fast", **more: Any) -> set[str]:
        found = names(baseline(objective="preference", preference={"loss": loss, **more}, engine=engine))
        return {name for name in found if name.startswith("shared-prompts")}

    assert of("dpo") == {"shared-prompts-off"}
    assert of("dpo", share_prompts=False) == {"shared-prompts-on"}
    assert of("dpo", engine="peft") == of("kto") == set()
