"""A bottleneck planted into a real run is named in its own words, and a healthy run has none; ten times with --full.

Delays are far above what the steps take; the tiny micro-batch and the padding are real.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tiny import WORDS, make_llama, write_rows
from whole_runs import Silent

from loradock.analysis.profile.profile import profile
from loradock.analysis.profile.recorder import Window
from loradock.config.load import load
from loradock.data import sources
from loradock.machine import Host, probe
from loradock.training.backends.fast.optimizer import FlatAdamW
from loradock.training.batches import StepItems
from loradock.training.checkpoint.store import Checkpoints
from loradock.training.loop import Loop
from loradock.training.run_dir.record import RunRecord

DELAY = 0.15
WINDOW = Window(warmup_steps=1, steps=8)
LONG_RUN = ("train.max_steps=2000", "train.global_batch=4", "data.max_length=256")
FEW, MANY = 1, 10
Patch = Callable[[Any, str, Any], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is planted, and what the verdict has to say."""

    kind: str
    words: str
    settings: tuple[str, ...] = ()
    plant: Callable[[Patch], None] = field(default=lambda _: None)
    rows: str = "even"
    model: str = "wide"


def late(owner: Any, name: str, *, seconds: float = DELAY) -> Callable[[Patch], None]:
    """The method takes so much longer."""

    def plant(patch: Patch) -> None:
        real = getattr(owner, name)

        def slow(*arguments: Any, **more: Any) -> Any:
            time.sleep(seconds)
            return real(*arguments, **more)

        patch(owner, name, slow)

    return plant


def slow_tokenising(patch: Patch) -> dict[int, float]:
    """The seed's loader: it takes 4.8 times as long for a step's data as the device took for the step before.

    Returns the seconds by step, counted from 1, filled as the run continues.
    """
    took, slept = [0.0], dict[int, float]()
    make, get = Loop.make_step, StepItems.__getitem__

    def make_step(self: Loop, inputs: Any) -> None:
        began = time.monotonic()
        make(self, inputs)
        took[0] = time.monotonic() - began

    def getitem(self: StepItems, index: int) -> Any:
        began = time.monotonic()
        time.sleep(4.8 * took[0])
        slept[index + 1] = time.monotonic() - began
        return get(self, index)

    patch(Loop, "make_step", make_step)
    patch(StepItems, "__getitem__", getitem)
    return slept


CASES = {
    "slow reader": Case(
        kind="data-bound",
        words="waiting for rows to be read and tokenised",
        settings=("train.max_steps=8", "data.workers=0"),
        plant=late(sources, "convert_row", seconds=0.03),
    ),
    "checkpoints too often": Case(
        kind="checkpoint-bound",
        words="saving every 1 step takes",
        settings=("checkpoints.every=1",),
        plant=late(Checkpoints, "commit"),
    ),
    "evaluation too often": Case(
        kind="evaluation-bound",
        words="evaluating every 1 step takes",
        settings=("evaluation.every=1", "data.validation=0.3"),
    ),
    "slow optimiser": Case(kind="optimiser-bound", words="the optimiser's update takes", plant=late(FlatAdamW, "step")),
    "logging sync": Case(
        kind="logging-bound",
        words="writing metric lines every 1 step takes",
        settings=("logging.every=1",),
        plant=late(RunRecord, "metric"),
    ),
    "padding": Case(
        kind="padding-bound",
        words="of what the passes compute is padding",
        settings=("engine=peft", "train.packing=false", "train.micro_batch=8", "train.global_batch=8"),
        rows="uneven",
        model="small",
    ),
    "tiny micro-batch": Case(
        kind="host-bound",
        words="the micro-batch is too small: each step is 16 passes",
        settings=("train.packing=false", "train.micro_batch=1", "train.global_batch=16"),
        model="small",
    ),
}
HEALTHY = Case(kind="compute-bound", words="no bottleneck found: compute-bound")
WITHOUT_BOTTLENECK = ("compute-bound", "bandwidth-bound")
"""What a healthy run may be called: which of both depends on how much of the memory's rate others take meanwhile."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One that launches next to nothing but overhead, and one whose products take most of the time."""
    wide = {"hidden_size": 192, "intermediate_size": 512}
    return {
        "small": make_llama(tmp_path_factory.mktemp("small")),
        "wide": make_llama(tmp_path_factory.mktemp("wide"), **wide),
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    uneven = folder / "uneven.jsonl"
    lengths = [40 if index % 8 == 0 else 1 for index in range(96)]
    texts = [" ".join(WORDS[place % len(WORDS)] for place in range(count)) for count in lengths]
    uneven.write_text("".join(json.dumps({"instruction": "Repeat.", "output": text}) + "\n" for text in texts))
    return {"even": write_rows(folder / "even.jsonl", rows=96), "uneven": uneven}


def profiled(case: Case, *, model: Path, rows: Path, folder: Path) -> dict[str, Any]:
    settings = [f"data.cache={folder / 'cache'}", *LONG_RUN, *case.settings]
    loaded = load(None, overrides=settings, shortcuts={"--model": str(model), "--data": [str(rows)]})
    output = folder / "profile"
    output.mkdir()
    return profile(loaded, facts=probe.gather(Host()), output=output, window=WINDOW, view=Silent())


def check(case: Case, found: dict[str, Any]) -> None:
    verdict = found["verdict"]
    assert verdict["kind"] == case.kind, (verdict, found["timeline"])
    assert case.words in verdict["sentence"]
    assert verdict["is_bottleneck"]


repeats = [pytest.param(each, id=str(each), marks=[] if each < FEW else pytest.mark.full) for each in range(MANY)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("repeat", repeats)
@pytest.mark.thin(4)
def test_a_planted_bottleneck_is_named(
    name: str,
    repeat: int,
    models: dict[str, Path],
    data: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = CASES[name]
    case.plant(monkeypatch.setattr)
    found = profiled(case, model=models[case.model], rows=data[case.rows], folder=tmp_path)
    check(case, found)


@pytest.mark.parametrize("repeat", repeats)
@pytest.mark.thin(4)
def test_the_seeds_idle_device_is_found_with_its_share(
    repeat: int, models: dict[str, Path], data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """83 % where steps take equally long; where others use the machine, what it really was."""
    slept = slow_tokenising(monkeypatch.setattr)
    case = Case(kind="data-bound", words="% of each step, waiting for data")
    found = profiled(case, model=models["wide"], rows=data["even"], folder=tmp_path)
    check(case, found)
    counted = [slept[step] for step in range(WINDOW.warmup_steps + 1, WINDOW.total + 1) if WINDOW.is_clean(step)]
    waiting = found["timeline"][0]
    assert waiting["name"] == "data"
    assert waiting["seconds"] == pytest.approx(sum(counted) / len(counted), rel=0.1, abs=0.02)
    assert waiting["share"] > 0.5
    assert f"data-bound: the device is idle {100 * waiting['share']:.0f} % of each step" in found["verdict"]["sentence"]


@pytest.mark.parametrize("repeat", repeats)
@pytest.mark.thin(4)
def test_a_healthy_run_has_no_bottleneck(
    repeat: int, models: dict[str, Path], data: dict[str, Path], tmp_path: Path
) -> None:
    found = profiled(HEALTHY, model=models["wide"], rows=data["even"], folder=tmp_path)
    verdict = found["verdict"]
    assert verdict["kind"] in WITHOUT_BOTTLENECK, (verdict, found["timeline"])
    assert verdict["sentence"].startswith(f"no bottleneck found: {verdict['kind']}")
    assert not verdict["is_bottleneck"]
