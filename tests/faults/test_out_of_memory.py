"""P18: a card that is full takes the dense weights off it, then halves the micro-batch, and nothing else.

There is no card here: torch.OutOfMemoryError is raised within the forward, the backward or the evaluation (see
`seams`), where a pass has more tokens or rows than the pretended card holds. All else is the run itself.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.conftest import Trial
from faults.seams import SEAMS
from safetensors.torch import load_file
from whole_runs import Silent, adapter_bytes, losses, train

from loradock.errors import OutOfMemory
from loradock.training.backends.fast.weights import FrozenWeight
from loradock.training.events import Event, Shrunk, StepDone
from loradock.training.loop import Loop

pytestmark = pytest.mark.thin(6)

RUN = (
    "train.max_steps=10",
    "train.global_batch=8",
    "train.learning_rate=1e-2",
    "lora.rank=4",
    "lora.dropout=0.1",
    "checkpoints.every=5",
    "checkpoints.keep=9",
    "data.max_length=64",
    "model.cache_weights=0",
)
SAID = "CUDA out of memory. Tried to allocate 2.00 GiB"


@dataclass
class Card(Silent):
    """What the card holds, seen as the run's view: `rows` or `tokens` of one pass, from the step `since` on.

    `within` says where it is too much: forward, backward or evaluation. `refused` counts, `kept` are loops of failed
    attempts that are still in memory when the next one begins; `workers` so many processes of theirs. `is_watched` is
    true while an attempt runs: what an engine checks before counts with no batch.
    """

    rows: int = 10**9
    tokens: int = 10**9
    since: int = 1
    within: str = "forward"
    step: int = 1
    refused: int = 0
    kept: int = 0
    workers: int = 0
    is_watched: bool = False
    shrunk: list[Shrunk] = field(default_factory=list)

    def event(self, event: Event) -> None:
        super().event(event)
        if isinstance(event, StepDone):
            self.step = event.step + 1
        elif isinstance(event, Shrunk):
            self.shrunk.append(event)
            self.step = event.step + 1
            self.kept += sum(type(each) is Loop for each in gc.get_objects())
            self.workers += len(multiprocessing.active_children())

    def holds(self, rows: int, *, of: tuple[str, ...], **more: Any) -> None:
        """Begin anew as a card for so many rows, or for so many times 64 tokens where rows are packed."""
        self.__init__(rows=10**9 if PACKED[0] in of else rows, tokens=rows * 64, **more)

    def hold(self, within: str, rows: int, tokens: int) -> None:
        """Hold a pass, or refuse it."""
        is_asked = self.is_watched and within == self.within and self.step >= self.since
        if is_asked and (rows > self.rows or tokens > self.tokens):
            self.refused += 1
            raise torch.OutOfMemoryError(SAID)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card, real = Card(), Loop.run

    def run(loop: Loop) -> Any:
        card.is_watched = True
        try:
            return real(loop)
        finally:
            card.is_watched = False

    monkeypatch.setattr(Loop, "run", run)
    for seams in SEAMS.values():
        seams.passes(card.hold, patch=monkeypatch.setattr)
    return card


@dataclass(frozen=True)
class Runs:
    """Runs with the tiny inputs, below one folder, by one engine."""

    folder: Path
    model: Path
    data: Path
    engine: str

    def __call__(self, name: str, *settings: str, view: Silent | None = None) -> Any:
        settings = (*RUN, f"engine={self.engine}", *settings)
        return train(self.folder / name, *settings, model=self.model, data=self.data, view=view)


@pytest.fixture
def runs(engine: str, tmp_path: Path, llama: Path, rows: Path) -> Runs:
    return Runs(tmp_path, llama, rows, engine)


def in_order(run: Path) -> bool:
    """Each step and each checkpoint has one line, in order."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = {kind: [line["step"] for line in lines if line["kind"] == kind] for kind in ("train", "checkpoint")}
    return steps == {"train": list(range(1, 11)), "checkpoint": [5, 10]}


def near(one: Any, other: Any) -> bool:
    """Equal adapters but for the order of additions."""
    first, second = (load_file(result.adapter / "adapter_model.safetensors") for result in (one, other))
    return all(torch.allclose(first[name], second[name], rtol=1e-2, atol=1e-4) for name in first)


PLAIN = ("train.packing=false",)
PACKED = ("train.packing=true",)
NOISY = ("train.neftune_alpha=5",)
FROM_THE_START = {  # where it is too much, settings, the micro-batch that fits, the step since which
    "forward": ("forward", PLAIN, 2, 1),
    "twice": ("forward", PLAIN, 1, 1),
    "packed": ("forward", PACKED, 2, 3),
    "backward": ("backward", PLAIN, 2, 4),
    "backward-packed": ("backward", (*PACKED, "train.workers=2"), 2, 1),
    "bfloat16": ("forward", (*PLAIN, "model.compute_dtype=bfloat16"), 1, 2),
    "checkpointing": ("backward", (*PACKED, "train.checkpointing=true"), 2, 3),
    "noise": ("forward", (*PLAIN, *NOISY), 1, 1),
    "backward-noise": ("backward", (*PLAIN, *NOISY), 2, 4),
}
IN_CI = (("fast", "packed"), ("fast", "backward"), ("peft", "twice"))


def marked(engine: str, *case: Any, in_ci: bool) -> Any:
    return pytest.param(engine, *case, marks=[] if in_ci else pytest.mark.full)


def engines_for(settings: tuple[str, ...]) -> tuple[str, ...]:
    return ("peft",) if NOISY[0] in settings else ("fast", "peft")


@pytest.mark.parametrize(
    ("engine", "case"),
    [
        marked(engine, case, in_ci=(engine, case) in IN_CI)
        for case, (_, settings, _, _) in FROM_THE_START.items()
        for engine in engines_for(settings)
    ],
)
def test_a_card_that_is_full_before_the_first_commit_gives_the_run_that_had_the_small_micro_batch_from_the_start(
    engine: str, case: str, card: Card, runs: Runs, trial: Trial
) -> None:
    within, settings, fits, since = FROM_THE_START[case]
    small = runs("small", *settings, f"train.micro_batch={fits}")
    card.holds(fits, of=settings, within=within, since=since)
    result = runs("large", *settings, "train.micro_batch=4", view=card)
    same = adapter_bytes(result) == adapter_bytes(small) and losses(result) == losses(small)
    halvings = [(each["before"], each["value"], each["step"]) for each in result.record["shrunk"]]
    assert card.shrunk
    assert SAID in card.shrunk[0].why
    assert (card.kept, card.workers) == (0, 0), "nothing of a failed attempt stays in memory"
    wanted = [(4, 2, 0), (2, 1, 0)] if fits == 1 else [(4, 2, 0)]
    is_right = same and in_order(runs.folder / "large") and halvings == wanted
    trial("P18", is_right, engine=engine, case=case, halvings=halvings)


@pytest.mark.parametrize("engine", ["fast"])
def test_a_card_that_is_full_of_dense_weights_goes_on_without_them_and_with_the_same_bits(
    engine: str, card: Card, runs: Runs, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("model.quantization=nf4", "train.micro_batch=4")
    packed = runs("packed", *settings)
    keep = FrozenWeight.keep

    def full(weight: FrozenWeight, dtype: torch.dtype | None) -> None:
        if dtype:
            raise torch.OutOfMemoryError(SAID)
        keep(weight, dtype)

    monkeypatch.setattr(FrozenWeight, "keep", full)
    result = runs("dense", *settings, "model.cache_weights=2", view=card)
    given = [(each["decision"], each["before"], each["value"], each["step"]) for each in result.record["shrunk"]]
    is_right = given == [("cached_layers", 2, 0, 0)] and adapter_bytes(result) == adapter_bytes(packed)
    trial("P18", is_right, engine=engine, case="dense weights", given=given)


LATER = [
    ("fast", PACKED, "backward"),
    ("fast", PACKED, "forward"),
    ("fast", PLAIN, "forward"),
    ("fast", PLAIN, "backward"),
    ("peft", PLAIN, "forward"),
    ("peft", PACKED, "forward"),
    ("peft", PLAIN, "backward"),
    ("peft", (*PACKED, *NOISY), "backward"),
]


@pytest.mark.parametrize(("engine", "settings", "within"), [marked(*case, in_ci=case == LATER[0]) for case in LATER])
def test_a_card_that_is_full_later_goes_back_to_the_last_commit_and_nothing_of_the_failed_attempt_stays(
    engine: str, settings: tuple[str, ...], within: str, card: Card, runs: Runs, trial: Trial
) -> None:
    """Full at step 7 or already at step 6, both go on from step 5: they have to end with the same bits."""
    ended = {}
    for since in (7, 6):
        card.holds(2, of=settings, since=since, within=within)
        result = ended[since] = runs(f"at-{since}", *settings, "train.micro_batch=4", view=card)
        assert [(each["step"], each["value"]) for each in result.record["shrunk"]] == [(5, 2)]
        assert f"step {since}: {SAID}" in result.record["shrunk"][0]["why"]
        assert in_order(runs.folder / f"at-{since}")
    card.__init__()
    large = runs("large", *settings, "train.micro_batch=4", "lora.dropout=0")
    card.holds(2, of=settings, since=7, within=within)
    shrunk = runs("shrunk", *settings, "train.micro_batch=4", "lora.dropout=0", view=card)
    is_same = adapter_bytes(ended[6]) == adapter_bytes(ended[7]) and losses(ended[6]) == losses(ended[7])
    is_near = near(shrunk, large) or NOISY[0] in settings
    trial("P18", is_same and is_near, engine=engine, case=f"at step 7, {within}", settings=settings)


@pytest.mark.parametrize("engine", ["fast"])
def test_a_run_that_shrank_keeps_the_small_micro_batch_when_it_continues(card: Card, runs: Runs) -> None:
    card.holds(2, of=PACKED, since=3)
    whole = runs("run", "train.micro_batch=4", view=card)
    run = runs.folder / "run"
    shutil.rmtree(run / "adapter")
    shutil.rmtree(run / "checkpoints" / "checkpoint-10")
    refused, card.step = card.refused, 6
    assert refused == 1
    again = runs("run", "train.micro_batch=4", view=card)
    assert again.record["resumed_from"] == "checkpoint-5"
    assert card.refused == refused, "it did not have to find out once more"
    assert adapter_bytes(again) == adapter_bytes(whole)


EVALUATED = [("fast", PACKED), ("fast", PLAIN), ("peft", PLAIN), ("peft", PACKED)]


@pytest.mark.parametrize(("engine", "settings"), [marked(*case, in_ci=case == EVALUATED[0]) for case in EVALUATED])
def test_a_card_that_is_full_in_an_evaluation_shrinks_it_too(
    engine: str, settings: tuple[str, ...], card: Card, runs: Runs, trial: Trial
) -> None:
    evaluated = ("data.validation=9", "evaluation.every=5", "checkpoints.every=2", "lora.dropout=0", *settings)
    small = runs("small", *evaluated, "train.micro_batch=2")
    card.holds(2, of=settings, within="evaluation")
    result = runs("large", *evaluated, "train.micro_batch=4", view=card)
    assert [each["step"] for each in result.record["shrunk"]] == [4], "the evaluation at step 5 was the first"
    steps = [line["step"] for line in result.evaluations]
    is_right = steps == [5, 10] and near(result, small)
    trial("P18", is_right, engine=engine, case="evaluation", steps=steps, settings=settings)


@pytest.mark.parametrize(("engine", "settings"), [("fast", PACKED), ("peft", PLAIN)])
def test_a_card_that_cannot_hold_one_row_ends_with_80_and_the_sizes(
    engine: str, settings: tuple[str, ...], card: Card, runs: Runs, trial: Trial
) -> None:
    card.holds(0, of=settings)
    with pytest.raises(OutOfMemory) as ended:
        runs("run", *settings, "train.micro_batch=2", view=card)
    record = json.loads((runs.folder / "run" / "run.json").read_text(encoding="utf-8"))
    assert ended.value.hint
    assert "--set" in ended.value.hint
    assert "at step 1 (micro-batch 1, rows of up to 64 tokens): CUDA out of memory" in ended.value.what
    assert not list((runs.folder / "run").glob("checkpoints/*"))
    assert [each["value"] for each in record["shrunk"]] == [1]
    is_right = (record["status"], record["exit_code"]) == ("failed", 80)
    trial("P18", is_right, engine=engine, case="one row", settings=settings)
