"""Evaluations and saves are spaced by what they cost; what a person sets, and what judges, stays where it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from whole_runs import Silent, train

from loradock.config.load import load
from loradock.plan.plan import Cadence, Decision
from loradock.training import spacing
from loradock.training.events import Decided, EvalResult
from loradock.training.spacing import SHARE, Kind, Spacing

pytestmark = pytest.mark.thin(2)

PLANNED = Cadence(log=10, evaluate=100, save=200)
AUTO = ("evaluation.every=auto", "checkpoints.every=auto")


class Clock:
    """A clock of one's own, in place of the module's."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def spaced(
    monkeypatch: pytest.MonkeyPatch,
    *settings: str,
    step_seconds: float,
    costs: Sequence[tuple[Kind, float]],
    planned: Cadence = PLANNED,
    steps: int = 10**9,
) -> tuple[Cadence, list[Decision[Cadence]]]:
    """The cadence after a hundred steps and these costs, and what was told."""
    clock = Clock()
    monkeypatch.setattr(spacing, "time", clock)
    config = load(None, overrides=["model.name=m", "data.sources=[{path: p}]", "data.validation=0.1", *settings]).config
    job: Any = SimpleNamespace(
        config=config, plan=SimpleNamespace(cadence=SimpleNamespace(value=planned)), steps=range(steps)
    )
    space = Spacing(job)
    for _ in range(101):
        space.step()
        clock.now += step_seconds
    clock.now -= step_seconds
    told: list[Decision[Cadence]] = []
    for kind, seconds in costs:
        clock.now += seconds
        told += [decision] if (decision := space.measured(kind, seconds)) else []
    return space.cadence, told


def share(cadence: Cadence, *, step_seconds: float, costs: Sequence[tuple[Kind, float]]) -> float:
    return sum(seconds / vars(cadence)[kind] for kind, seconds in costs) / step_seconds


@pytest.mark.parametrize("evaluation", [0.001, 1.0, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("save", [0.001, 0.5, 5.0, 50.0])
def test_both_together_cost_the_share_that_is_stated_at_most(
    evaluation: float, save: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[tuple[Kind, float]] = [("evaluate", evaluation), ("save", save)] * 3
    cadence, told = spaced(monkeypatch, *AUTO, step_seconds=0.2, costs=costs)
    assert share(cadence, step_seconds=0.2, costs=costs[:2]) <= SHARE * spacing.MORE
    assert cadence.evaluate % PLANNED.evaluate == cadence.save % PLANNED.save == 0
    assert told[-1].value == cadence
    assert "5 % at most" in told[-1].why


def test_what_costs_little_stays_as_planned_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[tuple[Kind, float]] = [("evaluate", 0.1), ("save", 0.02)] * 3
    cadence, told = spaced(monkeypatch, *AUTO, step_seconds=0.5, costs=costs)
    assert cadence == PLANNED
    assert [decision.why for decision in told] == [
        "an evaluation takes 100 ms, a save stops the steps for 20 ms, a step 500 ms: 0.2 % of the time, 5 % at most"
    ]


def test_a_short_run_keeps_its_plan_where_all_of_a_kind_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Cadence(log=1, evaluate=2, save=2)
    for steps, kept in ((40, True), (4000, False)):
        costs: list[tuple[Kind, float]] = [("evaluate", 0.09), ("save", 0.02)] * 2
        cadence, told = spaced(monkeypatch, *AUTO, step_seconds=0.01, costs=costs, planned=few, steps=steps)
        assert (cadence == few) == kept
        assert told[-1].why.endswith("of the time, 2.2 s of the run" if kept else "of the time, 5 % at most")


def test_a_setting_stays_whatever_it_costs_and_the_other_one_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[tuple[Kind, float]] = [("evaluate", 50.0), ("save", 50.0)] * 2
    asked = ("evaluation.every=100", "checkpoints.every=auto")
    cadence, told = spaced(monkeypatch, *asked, step_seconds=0.1, costs=costs)
    assert cadence.evaluate == 100
    assert 50.0 / cadence.save / 0.1 <= SHARE / 2
    assert told[-1].why.endswith("; evaluations stay as they are")
    asked = ("evaluation.every=100", "checkpoints.every=200")
    assert spaced(monkeypatch, *asked, step_seconds=0.1, costs=costs) == (PLANNED, [])


@pytest.mark.parametrize("judge", ["train.early_stopping=2", "checkpoints.keep_best=true"])
def test_evaluations_that_judge_stay_as_planned(judge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[tuple[Kind, float]] = [("evaluate", 99.0)] * 2
    cadence, _ = spaced(monkeypatch, *AUTO, judge, step_seconds=0.01, costs=costs)
    assert cadence.evaluate == PLANNED.evaluate


def test_saves_of_slow_steps_come_each_quarter_of_an_hour_where_that_costs_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cadence, _ = spaced(monkeypatch, *AUTO, step_seconds=30.0, costs=[("evaluate", 1.0), ("save", 0.5)])
    assert cadence == Cadence(log=10, evaluate=100, save=30)


def test_a_cadence_does_not_move_with_the_noise_of_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[tuple[Kind, float]] = [("evaluate", 20.0), ("save", 0.1)]
    noisy: list[tuple[Kind, float]] = [("evaluate", 20.0 * factor) for factor in (1.05, 0.9, 1.1, 0.95)]
    _, told = spaced(monkeypatch, *AUTO, step_seconds=0.1, costs=[*costs, *noisy])
    assert len({decision.value for decision in told}) == 1


def test_a_run_whose_evaluations_are_slow_holds_fewer_says_so_and_records_it(
    llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loradock.training import loop

    real = loop.evaluate

    def slow(*rest: Any, **more: Any) -> EvalResult:
        result = real(*rest, **more)
        return EvalResult(**{**vars(result), "seconds": 1000.0})

    monkeypatch.setattr(loop, "evaluate", slow)
    view = Silent()
    settings = ("train.max_steps=40", "data.validation=8", "data.max_length=64")
    result = train(tmp_path / "run", *settings, model=llama, data=rows, view=view)
    decided = [decision for event in view.events if isinstance(event, Decided) for decision in event.decisions]
    cadence = [decision for decision in decided if decision.name == "cadence"][-1]
    assert cadence.value.evaluate == 40
    evaluated = [event.step for event in view.events if isinstance(event, EvalResult)]
    assert (len(evaluated), evaluated[-1]) == (2, 40)
    recorded = {decision["name"]: decision for decision in result.record["engine"]}["cadence"]
    assert recorded == {"name": "cadence", "value": vars(cadence.value), "why": cadence.why}


def test_how_often_a_run_is_evaluated_and_saved_changes_no_bit_of_it(llama: Path, rows: Path, tmp_path: Path) -> None:
    adapters: list[bytes] = []
    for number, (evaluate, save) in enumerate(((1, 1), (3, 2), (12, 12))):
        every = (f"evaluation.every={evaluate}", f"checkpoints.every={save}")
        fixed = ("train.max_steps=12", "data.validation=8", "data.max_length=64", "lora.dropout=0.1")
        result = train(tmp_path / f"run-{number}", *fixed, *every, model=llama, data=rows)
        adapters.append((result.adapter / "adapter_model.safetensors").read_bytes())
    assert adapters[0] == adapters[1] == adapters[2]
