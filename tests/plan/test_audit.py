"""The audit: what it predicts, how it orders and adds up, and that figures come from where it says."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from facts.recorded import STACK, config, data, machine, models

from loradock.analysis.report.audit import as_dict, rates_line, set_line
from loradock.facts import DataFacts
from loradock.plan import planner
from loradock.plan.audit import Audit, Gain, Opportunity, audit
from loradock.plan.audit.gain import UNSEEN
from loradock.plan.audit.prediction import has_rates, padded_tokens, predicted, tokens_per_second
from loradock.plan.audit.totals import key_of
from loradock.plan.changed import changed, changed_config
from loradock.plan.planner import context_of

pytestmark = pytest.mark.thin(2)

SEED: dict[str, Any] = {
    "train": {"global_batch": 8, "micro_batch": 4, "checkpointing": True},
    "data": {"max_length": 1024},
}
"""The settings with which a 7B model was slow on an A10."""


def audited(*, gpu: str | None = "a10", of: str = "mistral-7b", rows: DataFacts | None = None, **asked: Any) -> Audit:
    return audit(config(**asked), machine(gpu), models()[of], rows or data())


def finding(of: Audit, name: str) -> Opportunity:
    return next(each for each in of.findings if each.trial.name == name)


def test_a_gain_is_the_ratio_of_what_the_speed_model_says_of_both_plans() -> None:
    found = audited(**SEED)
    auto = finding(found, "checkpointing-auto")
    after = changed(found.baseline, auto.trial.settings)
    facts = machine("a10")
    rates = [planner.tokens_per_second(each.plan, each.config, facts=facts) for each in (found.baseline, after)]
    assert auto.gain.expected == pytest.approx(rates[1] / rates[0], rel=0.02)  # checkpoints are in it, too
    assert auto.gain.source == "speed model"
    assert auto.gain.expected > 1.1
    assert auto.memory_bytes == after.plan.memory_bytes["total"]


def test_findings_are_ordered_by_gain_then_risk_and_their_severity_follows_the_gain() -> None:
    found = audited(engine="peft", train={"global_batch": 64, "micro_batch": 2, "packing": False})
    gains = [round(each.gain.expected, 2) for each in found.findings]
    assert gains == sorted(gains, reverse=True)
    for each in found.findings:
        gain = round(each.gain.expected, 2)
        wanted = "critical" if gain >= 1.5 else "moderate" if gain >= 1.1 else "low"
        assert each.severity == wanted
    for first, second in zip(found.findings, found.findings[1:], strict=False):
        if round(first.gain.expected, 2) == round(second.gain.expected, 2):
            assert first.risk <= second.risk
    assert finding(found, "engine-fast").severity == "critical"


def test_the_conservative_total_has_no_risk_and_is_planned_anew_with_all_of_it() -> None:
    found = audited(**SEED)
    assert found.conservative.trials
    assert all(each.accuracy_risk == each.stability_risk == "none" for each in found.conservative.trials)
    config_after = changed_config(found.baseline.config, found.conservative.settings)
    plan = planner.make(config_after, facts=machine("a10"), model=models()["mistral-7b"], data=data())
    after = predicted(context_of(plan, config_after, facts=machine("a10")))
    assert found.conservative.gain.low == pytest.approx(predicted(found.baseline).step / after.step)
    assert plan.memory_bytes["total"] <= found.available_bytes
    keys = [key_of(setting) for setting in found.conservative.settings]
    assert len(set(keys)) == len(keys)


def test_the_aggressive_total_is_at_least_the_conservative_one() -> None:
    settings: tuple[dict[str, Any], ...] = (SEED, {"engine": "peft"})
    for asked in settings:
        for gpu in ("a10", "h200"):
            found = audited(gpu=gpu, **asked)
            assert found.aggressive.gain.high >= found.conservative.gain.low - 0.01


def test_what_does_not_fit_is_left_with_both_figures_and_is_no_finding() -> None:
    found = audited(rows=data(mean=900), train={"global_batch": 8, "micro_batch": 8, "checkpointing": True})
    left = {each.what: each.why for each in found.left}
    why = next(text for what, text in left.items() if what.startswith("0 of 32 layers"))
    assert "out of memory" in why
    assert "GiB of 20.2" in why
    names = [each.trial.name for each in found.findings]
    assert "checkpointing-off" not in names


def test_nothing_is_left_on_a_plan_that_nobody_pinned_but_what_costs_something() -> None:
    found = audited(gpu="h200", train={"global_batch": 64})
    assert not found.conservative.trials
    assert found.conservative.gain.low == 1.0
    assert not [each for each in found.findings if each.risk == 0 and not each.gain.is_range]


def test_evaluating_too_often_is_found_by_arithmetic() -> None:
    rows = data(rows=1600, held_out=160)
    found = audited(
        gpu="a10", rows=rows, evaluation={"every": 1}, checkpoints={"every": 100}, train={"global_batch": 16}
    )
    often = finding(found, "evaluation-x10")
    exact = (1 + 160 / 3 / 16) / (1 + 160 / 3 / 16 / 10)
    assert often.gain.expected == pytest.approx(exact, rel=0.02)
    assert often.gain.source.startswith("arithmetic")
    assert often.severity == "critical"
    assert often.trial in found.conservative.trials


def test_checkpoints_too_often_are_found_by_what_was_measured() -> None:
    found = audited(gpu="h200", of="tinyllama-1.1b", checkpoints={"every": 1}, lora={"rank": 64})
    often = finding(found, "checkpoints-x10")
    assert "measured: bench/results/checkpoint.md" in often.gain.source
    assert often.gain.expected > 1.5
    assert often.trial not in found.conservative.trials  # a run that is cut off has more to do again


def test_what_no_model_knows_is_a_range_with_its_source_and_no_part_of_the_conservative_total() -> None:
    found = audited(engine="peft", rows=data(mean=900, longest=900, limit=900))
    compiled = finding(found, "compile-default")
    assert (compiled.gain.low, compiled.gain.high) == pytest.approx((1.0, 1.25), rel=0.01)
    assert compiled.gain.is_range
    assert "not measured here" in compiled.gain.source
    assert compiled.trial not in found.conservative.trials


def test_padding_is_predicted_as_rows_of_spread_lengths_have_it() -> None:
    assert padded_tokens(data(), 1) == data().mean_tokens
    assert padded_tokens(data(mean=512, longest=512), 8) == 512
    draw = random.Random(3)
    lengths = [draw.gammavariate(1 / 0.75**2, 166 * 0.75**2) for _ in range(40_000)]  # spread as ROW_SPREAD assumes
    for rows in (4, 8, 16):
        seen = [max(lengths[first : first + rows]) for first in range(0, len(lengths), rows)]
        assert padded_tokens(data(longest=100_000), rows) == pytest.approx(sum(seen) / len(seen), rel=0.12), rows


def test_the_trl_engine_is_predicted_slower_with_padding_with_checkpointing_and_than_the_fast_one() -> None:
    asked: dict[str, Any] = {"global_batch": 64, "micro_batch": 8}

    def step(**train: Any) -> float:
        wanted = config(engine="peft", train={**asked, **train})
        plan = planner.make(wanted, facts=machine("a10"), model=models()["mistral-7b"], data=data())
        return predicted(context_of(plan, wanted, facts=machine("a10"))).step

    plain = step(packing=False, checkpointing=False)
    assert step(packing=False, checkpointing=True) / plain == pytest.approx(1.5, abs=0.15)
    assert step(packing=True, checkpointing=False) < plain
    fast = config(train={"global_batch": 64})
    plan = planner.make(fast, facts=machine("a10"), model=models()["mistral-7b"], data=data())
    assert predicted(context_of(plan, fast, facts=machine("a10"))).step < plain / 1.5


def test_the_host_is_waited_for_where_passes_are_short_and_graphs_take_that_away() -> None:
    tiny: dict[str, Any] = {"gpu": "h200", "of": "tinyllama-1.1b", "rows": data(mean=20, longest=128, limit=512)}
    found = audited(**tiny, train={"micro_batch": 1, "global_batch": 64, "cuda_graphs": False})
    assert predicted(found.baseline).host > predicted(found.baseline).passes / 3
    graphs = finding(found, "cuda-graphs-on")
    assert "bench/results/host" in graphs.gain.source
    assert graphs.gain.expected > 1.5
    assert predicted(audited(rows=data(mean=900), train={"global_batch": 64}).baseline).host == 0


def test_the_time_to_finish_counts_every_sample_once_an_epoch_and_prices_each_gpu() -> None:
    asked = config(train={"epochs": 2, "global_batch": 64})
    facts = replace(machine("a10"), world_size=2)
    found = audit(asked, facts, models()["mistral-7b"], data(rows=1000), price_per_hour=1.5)
    assert found.finish.tokens == 2 * 1000 * 166
    assert found.finish.steps == 2 * math.ceil(1000 / 64)
    assert found.finish.cost == pytest.approx(2 * 1.5 * found.finish.seconds / 3600)
    cut = audit(config(train={"max_steps": 3, "global_batch": 64}), facts, models()["mistral-7b"], data(rows=1000))
    assert (cut.finish.tokens, cut.finish.cost) == (3 * 64 * 166, None)


def test_what_is_good_already_is_told_and_only_where_it_is() -> None:
    lines = "\n".join(audited().good)
    for words in ("bfloat16", "NF4", "no layer is recomputed", "end to end", "fused AdamW", "tokenised once"):
        assert words in lines, words
    worse = "\n".join(audited(**{**SEED, "model": {"quantization": "none"}, "engine": "peft"}, gpu="h200").good)
    assert "NF4" not in worse
    assert "is recomputed" not in worse


def test_a_shorter_row_is_counted_by_the_rows_where_they_are_there() -> None:
    asked: list[int] = []

    def at_length(tokens: int) -> DataFacts:
        asked.append(tokens)
        return data(mean=150, longest=tokens, limit=tokens)

    rows = data(mean=400, longest=1024)
    found = audit(config(**SEED), machine("a10"), models()["mistral-7b"], rows, at_length=at_length)
    assert set(asked) == {512}
    left = {each.what: each.why for each in found.left}
    why = next(text for what, text in left.items() if what.startswith("rows of at most 512"))
    assert "real tokens/s" in why  # a step is far shorter, but what it leaves out is text


def test_what_the_model_cannot_see_is_said_to_be_unseen() -> None:
    why = next(each.why for each in audited().left if each.what.startswith("a metric line"))
    assert why == f"1.00x the real tokens/s expected ({UNSEEN})"


def test_speeds_are_said_to_be_of_the_gpu_of_the_one_taken_in_its_place_or_of_a_cpu() -> None:
    assert "published figures of NVIDIA A10, 50%" in rates_line(audited())
    unknown = replace(machine("a10"), gpus=(replace(machine("a10").gpu, name="NVIDIA Z9"),))
    assert "NVIDIA Z9 is not in the GPU table" in rates_line(
        audit(config(), unknown, models()["tinyllama-1.1b"], data())
    )
    assert "two shared CPU cores" in rates_line(audited(gpu=None, of="tinyllama-1.1b"))


def test_the_line_to_type_quotes_lists_and_the_json_form_has_everything() -> None:
    assert set_line(("lora.targets=[q_proj, v_proj]", "lora.rank=8")) == (
        "--set 'lora.targets=[q_proj, v_proj]' --set lora.rank=8"
    )
    content = as_dict(audited(**SEED), price_per_hour=None)
    assert content["plan"]["decisions"]
    assert {"settings", "gain", "severity", "price", "accuracy_risk"} <= set(content["findings"][0])
    assert content["conservative"]["gain"]["expected"] >= 1


def test_auditing_imports_no_heavy_package() -> None:
    script = (
        "import sys, loradock.plan.audit, loradock.plan.trials\n"
        f"heavy = {sorted([*STACK, 'numpy', 'pynvml'])!r}\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_shown_as_1_10x_is_moderate() -> None:
    some = audited(**SEED).findings[0]
    for low, high, severity in ((1.0954, 1.0954, "moderate"), (1.0, 1.2, "moderate"), (1.0949, 1.0949, "low")):
        assert replace(some, gain=Gain(low=low, high=high, source="")).severity == severity


def test_sentences_fit_what_is_none_and_what_is_some() -> None:
    found = audited(gpu="h200", rows=data(rows=100))
    why = next(each.why for each in found.baseline.plan.decisions if each.name == "checkpointing")
    assert why == "the activations of all 32 layers fit: no layer is recomputed"
    assert any("loaded by the training process" in line for line in found.good)
    cached = found.baseline.plan.cached_layers.value
    assert any(line.startswith(f"{cached} of 32 layers keep dense weights") for line in found.good)


def reason(of: Audit, beginning: str) -> str:
    """Why a change was left."""
    return next(each.why for each in of.left if each.what.startswith(beginning))


def names(of: Audit) -> set[str]:
    """Of the findings and both totals."""
    trials = (*(each.trial for each in of.findings), *of.conservative.trials, *of.aggressive.trials)
    return {each.name for each in trials}


def test_16_bit_products_on_a_cpu_are_not_proposed_because_nobody_knows_whether_they_are_faster() -> None:
    found = audited(gpu=None, of="tinyllama-1.1b")
    assert "compute-bfloat16" not in names(found)
    assert "several times slower" in reason(found, "products in bfloat16")
    for dtype in ("auto", "bfloat16"):
        asked = audited(gpu=None, of="tinyllama-1.1b", model={"compute_dtype": dtype})
        assert has_rates(asked.baseline) == (dtype == "auto")
    assert "compute-bfloat16" in names(audited(engine="peft", model={"compute_dtype": "float32"}))


def test_more_workers_than_the_plan_would_take_are_left_with_its_own_reason() -> None:
    for gpu, why in ((None, "on a CPU a worker would take the cores that train"), ("a10", "CPUs keep up")):
        found = audited(gpu=gpu, of="tinyllama-1.1b")
        assert "data-workers-more" not in names(found)
        planned = next(each.why for each in found.baseline.plan.decisions if each.name == "dataloader")
        assert why in planned
        assert planned in [each.why for each in found.left if "data workers instead of" in each.what]
    pinned = audited(train={"workers": 0})
    assert finding(pinned, "data-workers-more").trial.settings == ("train.workers=2",)


def test_fewer_checkpoints_are_proposed_only_while_a_run_has_ten_and_loses_ten_minutes_at_most() -> None:
    few = audited(gpu="h200", of="tinyllama-1.1b", rows=data(rows=400), checkpoints={"every": 1}, lora={"rank": 64})
    assert finding(few, "checkpoints-x10").trial.settings == ("checkpoints.every=2",)  # of 25 steps
    rare = audited(gpu="h200", of="tinyllama-1.1b", checkpoints={"every": 62}, lora={"rank": 64})
    assert "checkpoints-x10" not in names(rare)
    slow = audited(gpu="t4", of="mistral-7b", checkpoints={"every": 10}, train={"global_batch": 64, "epochs": 10})
    assert "would repeat up to" in reason(slow, "a checkpoint every 100 steps")


def test_a_gain_is_the_ratio_of_the_rates_that_others_may_show_beside_measurements() -> None:
    settings: tuple[dict[str, Any], ...] = (SEED, {**SEED, "checkpoints": {"every": 1}}, {"engine": "peft"})
    for asked in settings:
        found = audited(**asked)
        for each in found.findings:
            if not each.gain.is_range:
                after = changed(found.baseline, each.trial.settings)
                ratio = tokens_per_second(after) / tokens_per_second(found.baseline)
                assert each.gain.expected == pytest.approx(ratio), each.trial.name
