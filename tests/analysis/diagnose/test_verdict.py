"""What measurements are said to mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from analysis.diagnose.made import measured, trial

from loradock.analysis.diagnose.measure import Failed
from loradock.analysis.diagnose.verdict import Case, bottlenecks, conclude, is_winner, summary
from loradock.env_check.paired_ratio import Ratio, ratio

BASELINE = measured()


def times(value: float, *, rounds: int = 3, spread: float = 0.01) -> Ratio:
    return Ratio(value=value, low=value * (1 - spread), high=value * (1 + spread), rounds=rounds)


def case(name: str, ratio: Ratio | None = None, *, failure: Failed | None = None, **of_trial: Any) -> Case:
    lost = of_trial.pop("lost_tokens", 0)
    memory = of_trial.pop("memory", 1.0)
    padding = of_trial.pop("padding", 0.0)
    seen = measured(
        times=1 / ratio.value if ratio else 1.0,
        lost_tokens=lost,
        cut_rows=7 if lost else 0,
        memory_bytes=int(memory * BASELINE.memory_bytes),
        padding_share=padding,
    )
    return Case(trial=trial(name, **of_trial), ratio=ratio, measured=seen if ratio else None, failure=failure)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (case("a", times(1.5)), "cause"),
        (case("a", times(1.1)), "helps a little"),
        (case("a", times(1.01)), "not the cause"),
        (case("a", times(0.7)), "not the cause: slower"),
        (case("a", ratio([-0.5])), "undecided: after 1 round(s)"),
        (replace(case("a", ratio([-0.5])), is_given_up=True), "not the cause: slower"),
        (case("a", times(1.2, spread=0.3)), "undecided: after 3 round(s)"),
        (case("a", times(1.06, spread=0.05, rounds=4)), "not the cause: 1.11x faster at most"),
        (case("a", times(1.5), price="tokens", lost_tokens=31_000),
         "not worth it: 31 % more of the tokens are lost, 7 rows are cut or dropped"),
        (case("a", times(1.5), accuracy_risk="moderate", price="half"),
         "not worth it: moderate risk to accuracy: half"),
        (case("a", times(1.5), price="unquantised weights", memory=3.0), "not worth it: 3.0 times the memory"),
        (case("a", times(1.1), price="unquantised weights"), "not worth it: unquantised weights"),
        (case("a", times(1.5), price="rounded", accuracy_risk="low"), "cause: rounded"),
        (case("a"), "not tried: the budget was spent"),
        (Case(trial=trial("a"), bound=0.03), "not tried: can save at most 3 % (passes)"),
        (case("a", failure=Failed(kind="out of memory", words="no space", exit_code=80)), "out of memory: no space"),
        (case("a", failure=Failed(kind="failed", words="it broke", exit_code=70)), "failed: it broke"),
    ],
)  # fmt: skip
def test_each_way_that_a_trial_can_come_out_has_its_word(found: Case, said: str) -> None:
    assert str(conclude(found, BASELINE)) == said


def test_a_phase_that_takes_most_of_a_step_is_the_bottleneck_with_the_trial_that_confirms_it() -> None:
    slow = measured(phases={"data": 2.2})
    synthetic = case(
        "synthetic", times(3.2), phase="data", is_remedy=False, accuracy_risk="high", price="nothing learned"
    )
    found = bottlenecks([synthetic], slow)
    assert [each.name for each in found] == ["data"]
    assert (
        found[0].sentence
        == "waiting for data takes 69 % of each step; with synthetic it runs 3.20x (3.17 .. 3.23) faster"
    )
    assert bottlenecks([], slow)[0].sentence == "waiting for data takes 69 % of each step"
    assert bottlenecks([case("synthetic", times(1.0), phase="data", is_remedy=False)], slow) == ()


def test_padding_is_named_where_passes_with_less_of_it_are_faster() -> None:
    padded = measured(padding_share=0.7)
    found = bottlenecks([case("packing", times(2.5)), case("engine", times(3.5))], padded)
    assert [each.name for each in found] == ["padding"]
    assert found[0].sentence.startswith("padding takes about 63 % of each step: 70 % of the tokens that go through")
    assert found[0].trial == "engine"
    assert bottlenecks([case("packing", times(1.0))], padded) == ()


def test_a_trial_that_does_more_than_spare_padding_is_a_bottleneck_of_its_own() -> None:
    padded = measured(padding_share=0.2)
    names = [each.name for each in bottlenecks([case("engine", times(4.0))], padded)]
    assert names == ["engine", "padding"]


def test_a_trial_that_may_do_no_more_than_spare_padding_is_no_bottleneck_of_its_own() -> None:
    padded = measured(padding_share=0.67)
    engine = case("engine", Ratio(value=7.4, low=3.8, high=14.5, rounds=3))
    assert [each.name for each in bottlenecks([engine], padded)] == ["padding"]


def test_another_engine_costs_no_more_than_the_passes_where_it_also_takes_out_a_slow_update() -> None:
    """A planted update of 58 % of a step was once called the engine: without it peft was 2.47 times faster."""
    slow = measured(phases={"optimizer": 1.5})
    assert slow.breakdown.share("passes") < slow.breakdown.share("optimizer")
    found = bottlenecks([case("engine", Ratio(value=2.47, low=1.6, high=3.83, rounds=3))], slow)
    assert [each.name for each in found] == ["optimizer", "engine"]
    assert [each.saving for each in found] == [slow.breakdown.share(each) for each in ("optimizer", "passes")]
    two = bottlenecks([case("small", times(3.0)), case("large", times(5.0))], slow)
    assert [each.name for each in two] == ["optimizer", "large", "small"]


def test_the_best_trial_that_gives_nothing_up_names_what_brakes_the_passes() -> None:
    found = bottlenecks(
        [case("small", times(1.3)), case("large", times(1.8)), case("short", times(2.5), price="tokens")], BASELINE
    )
    assert [each.name for each in found] == ["large", "small"]
    assert (
        summary(found, [], BASELINE)
        == "no large (passes take 90 % of each step); with large it runs 1.80x (1.78 .. 1.82) faster"
    )


def test_nothing_is_invented_for_a_healthy_run() -> None:
    cases = [case("a", times(1.1)), case("b", times(2.0), price="tokens"), case("c", times(1.2, spread=0.3))]
    assert bottlenecks(cases, BASELINE) == ()
    said = summary((), cases, BASELINE)
    assert said.startswith("no bottleneck found: passes take 90 % of each step")
    assert said.endswith("; 1 trial(s) are undecided, the most promising: c, 1.20x (0.84 .. 1.56)")


def test_only_a_remedy_that_is_not_too_dear_is_proposed() -> None:
    assert is_winner(case("a", times(1.1)), BASELINE)
    assert not is_winner(case("a", times(1.5), is_remedy=False), BASELINE)
    assert not is_winner(case("a", times(1.5), stability_risk="moderate"), BASELINE)
    assert not is_winner(case("a", times(1.5), lost_tokens=1), BASELINE)
