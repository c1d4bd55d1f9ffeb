"""What is measured next: by made outcomes, with noise and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis.diagnose.made import measured, trial

from loradock.analysis.diagnose.document import document
from loradock.analysis.diagnose.measure import Failed, Outcome
from loradock.analysis.diagnose.results import Results
from loradock.analysis.diagnose.search import Search
from loradock.analysis.report.diagnosis import verdict_lines
from loradock.errors import UsageError
from loradock.plan.trial import Trial

SPEEDS = {"a=1": 1.5, "b=1": 1.3, "c=1": 1.0, "d=1": 0.6, "a=2": 1.4}


class World:
    """Runs that take as long as their settings say, and `noise`; some settings break a run."""

    def __init__(self, speeds: dict[str, float] | None = None, *, noise: float = 0.0, seed: int = 0) -> None:
        self.speeds = SPEEDS if speeds is None else speeds
        self.noise = noise
        self.draw = np.random.default_rng(seed)
        self.runs: list[tuple[str, ...]] = []
        self.waited: list[tuple[str, ...]] = []
        self.broken: dict[str, Failed] = {}
        self.after: Callable[[int], None] = lambda _: None
        self.phases: dict[str, float] = {}

    def measure(
        self, settings: tuple[str, ...], waits_for: tuple[str, ...], _: dict[str, float], limit: float
    ) -> Outcome:
        assert limit > 0
        self.runs.append(settings)
        self.waited.append(waits_for)
        self.after(len(self.runs))
        for setting in settings:
            if setting in self.broken:
                return self.broken[setting]
        speed = float(np.prod([self.speeds[each] for each in settings]))
        return measured(times=float(np.exp(self.noise * self.draw.standard_normal())) / speed, phases=self.phases)


def search(world: World, *trials: Trial, folder: Path | None = None, **others: Any) -> Search:
    values: dict[str, Any] = {"budget_seconds": 1000.0, "tell": lambda _: None, **others}
    return Search(trials=trials, measure=world.measure, results=Results(folder, identity={"of": "1"}), **values)


A, B, C, D = (trial(name, f"{name}=1") for name in "abcd")
A2 = trial("a2", "a=2")


def test_rounds_go_on_until_each_trial_is_decided_and_begin_with_another_each_time() -> None:
    world = World()
    found = search(world, A, C, D)
    found.go()
    assert world.runs[:9] == [(), ("a=1",), ("c=1",), ("d=1",), (), ("c=1",), ("a=1",), (), ("a=1",)]
    assert [len(arm.rounds) for arm in found.arms] == [3, 3, 1]
    assert found.has_ended


def test_what_cannot_save_enough_is_not_run_and_the_bound_is_shown() -> None:
    world = World()
    found = search(world, trial("loader", "x=1", phase="data"))
    found.go()
    assert world.runs == [()]
    assert document(found, price_per_hour=None, published={})["rows"][1]["conclusion"] == (
        "not tried: can save at most 1 % (data)"
    )


def test_the_winners_are_combined_and_what_adds_nothing_is_left_out() -> None:
    world = World({**SPEEDS, "c=1": 1.2})
    found = search(world, A, A2, B, C)
    real = world.measure
    found.measure = lambda settings, *others: real(
        tuple(each for each in settings if each != "c=1" or len(settings) == 1), *others
    )
    found.go()
    patch = document(found, price_per_hour=3.6, published={})["patch"]
    assert patch["settings"] == ["a=1", "b=1"]
    assert patch["speed_up"] == pytest.approx(1.95)
    assert patch["cost_saved"] == pytest.approx(1000 * (1 - 1 / 1.95) / 1000)
    assert ("a=1", "a=2") not in [run[:2] for run in world.runs]


def test_what_another_trial_overtakes_by_far_is_left_undecided() -> None:
    world = World({"a=1": 4.0, "b=1": 1.05}, noise=0.01)
    found = search(world, A, B)
    found.go()
    assert [len(arm.rounds) for arm in found.arms] == [3, 3]
    rows = document(found, price_per_hour=None, published={})["rows"]
    assert [each.get("word") for each in rows[1:]] == ["cause", "undecided"]


def test_a_trial_that_breaks_is_a_result_and_not_run_again() -> None:
    world = World()
    world.broken["a=1"] = Failed(kind="out of memory", words="full", exit_code=80)
    found = search(world, A, B)
    found.go()
    assert world.runs.count(("a=1",)) == 1
    rows = document(found, price_per_hour=None, published={})["rows"]
    assert [each.get("conclusion") for each in rows] == [None, "out of memory: full", "cause"]


def test_a_spent_budget_leaves_what_is_open_undecided() -> None:
    found = search(World(), A, B, began=0.0)  # a clock that began long ago
    found.go()
    content = document(found, price_per_hour=None, published={})
    assert not content["is_complete"]
    assert [each["conclusion"] for each in content["rows"][1:]] == ["not tried: the budget was spent"] * 2


def test_what_was_measured_is_taken_over_and_not_measured_again(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(runs: int) -> None:
        if runs == 6:
            raise Cut

    first, whole = World(noise=0.01), World(noise=0.01)
    first.after = cut
    with pytest.raises(Cut):
        search(first, A, B, folder=tmp_path).go()
    with (tmp_path / "results.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"round": 7, "sett\n')  # what a power cut leaves of a line
    second = World(noise=0.01, seed=9)
    continued = search(second, A, B, folder=tmp_path)
    continued.go()
    search(whole, A, B).go()
    assert len(first.runs) - 1 + len(second.runs) == pytest.approx(len(whole.runs), abs=6)
    assert second.runs[0] == first.runs[5]
    with pytest.raises(UsageError, match="another configuration"):
        Results(tmp_path, identity={"of": "2"})


def test_evaluations_are_waited_for_only_where_they_count() -> None:
    world = World()
    search(world, A).go()
    assert set(world.waited[1:]) == {()}
    world = World()
    world.phases = {"saving": 0.5}
    search(world, A).go()
    assert set(world.waited[1:]) == {("saving",)}


@pytest.mark.thin(4)
def test_on_a_loud_machine_nothing_is_called_slower_or_faster_for_one_bad_round() -> None:
    names = "efgh"
    words: list[str] = []
    warned = 0
    for seed in range(20):
        world = World({f"{name}=1": 1.4 for name in names}, noise=0.8, seed=seed)
        found = search(world, *(trial(name, f"{name}=1") for name in names))
        found.go()
        content = document(found, price_per_hour=None, published={})
        words += [row["conclusion"] for row in content["rows"][1:] if row["name"] in names]
        warned += any(line.startswith("noise: ") for line in verdict_lines(content, command=None))
    assert warned >= 19
    assert sum(word == "not the cause: slower" for word in words) < 0.05 * len(words), words


def test_a_quiet_machine_gives_up_what_is_much_slower_after_one_round_and_says_nothing_of_noise() -> None:
    told: list[str] = []
    found = search(World(noise=0.01), A, C, D, tell=told.append)
    found.go()
    assert len(found.arms[2].rounds) == 1
    content = document(found, price_per_hour=None, published={})
    assert content["rows"][3]["conclusion"] == "not the cause: slower"
    assert not [line for line in verdict_lines(content, command=None) if line.startswith("noise: ")]


def test_what_is_slower_on_a_loud_machine_is_measured_again_by_the_next_call(tmp_path: Path) -> None:
    first = World({"a=1": 1.3}, noise=0.01)
    first.speeds["a=1"] = 0.7  # something else ran beside it
    cut = search(first, A, folder=tmp_path, budget_seconds=1000.0)
    cut.run(cut.baseline)
    cut.run(cut.arms[0])
    second = World({"a=1": 1.3}, noise=0.3, seed=4)
    again = search(second, A, folder=tmp_path)
    again.go()
    assert ("a=1",) in second.runs


@pytest.mark.parametrize("noise", [0.1, pytest.param(0.05, marks=pytest.mark.full)])
@pytest.mark.thin(6)
def test_noise_names_no_cause_in_ninety_nine_of_a_hundred_trials(noise: float) -> None:
    names, diagnoses = "efghijkl", 30
    causes = 0
    for seed in range(diagnoses):
        world = World({f"{name}=1": 1.0 for name in names}, noise=noise, seed=seed)
        found = search(world, *(trial(name, f"{name}=1") for name in names))
        found.go()
        causes += len(document(found, price_per_hour=None, published={})["bottlenecks"])
    assert causes < 0.01 * diagnoses * len(names)
