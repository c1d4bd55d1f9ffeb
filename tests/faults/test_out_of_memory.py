"""P18: a card that is full halves the micro-batch and nothing else.

There is no card here: a feed-forward layer of the model raises torch.OutOfMemoryError, in the forward or from a hook
in the backward, where a pass has more tokens or rows than the pretended card holds. All else is the run itself.
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
from safetensors.torch import load_file
from tiny import Silent, adapter_bytes, losses, train
from transformers.models.llama.modeling_llama import LlamaMLP

from loradock.engine.base import Event, Shrunk, StepDone
from loradock.engine.trl_trainer import StepTrainer
from loradock.errors import OutOfMemory

RUN = (
    "train.max_steps=10",
    "train.global_batch=8",
    "train.learning_rate=1e-2",
    "lora.rank=4",
    "lora.dropout=0.1",
    "checkpoints.every=5",
    "checkpoints.keep=9",
    "data.max_length=64",
)
SAID = "CUDA out of memory. Tried to allocate 2.00 GiB"


@dataclass
class Card(Silent):
    """What the card holds, seen as the run's view: `rows` or `tokens` of one pass, from the step `since` on.

    `within` says where it is too much: forward, backward or evaluation. `refused` counts, `kept` are trainers of failed
    attempts that are still in memory when the next one begins; `workers` so many processes of theirs.
    """

    rows: int = 10**9
    tokens: int = 10**9
    since: int = 1
    within: str = "forward"
    step: int = 1
    refused: int = 0
    kept: int = 0
    workers: int = 0
    shrunk: list[Shrunk] = field(default_factory=list)

    def event(self, event: Event) -> None:
        super().event(event)
        if isinstance(event, StepDone):
            self.step = event.step + 1
        elif isinstance(event, Shrunk):
            self.shrunk.append(event)
            self.step = event.step + 1
            self.kept += sum(type(each) is StepTrainer for each in gc.get_objects())
            self.workers += len(multiprocessing.active_children())

    def is_full(self, hidden: torch.Tensor) -> bool:
        rows, length = hidden.shape[:2]
        return self.step >= self.since and (rows > self.rows or rows * length > self.tokens)

    def refuse(self, *_: object) -> None:
        self.refused += 1
        raise torch.OutOfMemoryError(SAID)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card, real = Card(), LlamaMLP.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self.training == (card.within == "evaluation") or not card.is_full(x):
            return real(self, x)
        if card.within != "backward":
            card.refuse()
        out = real(self, x)
        out.register_hook(card.refuse)
        return out

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    return card


@dataclass(frozen=True)
class Runs:
    """Runs with the tiny inputs, below one folder."""

    folder: Path
    model: Path
    data: Path

    def __call__(self, name: str, *settings: str, view: Silent | None = None) -> Any:
        return train(self.folder / name, *RUN, *settings, model=self.model, data=self.data, view=view)


@pytest.fixture
def runs(tmp_path: Path, llama: Path, rows: Path) -> Runs:
    return Runs(tmp_path, llama, rows)


def in_order(run: Path) -> bool:
    """Each step and each checkpoint has one line, in order."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = {kind: [line["step"] for line in lines if line["kind"] == kind] for kind in ("train", "checkpoint")}
    return steps == {"train": list(range(1, 11)), "checkpoint": [5, 10]}


def near(one: Any, other: Any) -> bool:
    """Equal adapters but for the order of additions."""
    first, second = (load_file(result.adapter / "adapter_model.safetensors") for result in (one, other))
    return all(torch.allclose(first[name], second[name], rtol=1e-2, atol=1e-4) for name in first)


PACKED = ("train.packing=true",)
NOISY = ("train.neftune_alpha=5",)
FROM_THE_START = {  # where it is too much, settings, the micro-batch that fits, the step since which
    "forward": ("forward", (), 2, 1),
    "twice": ("forward", (), 1, 1),
    "packed": ("forward", PACKED, 2, 3),
    "backward": ("backward", NOISY, 2, 4),
    "backward-packed": ("backward", (*PACKED, "train.workers=2"), 2, 1),
    "noise": ("forward", NOISY, 1, 1),
    "bfloat16": ("forward", ("model.compute_dtype=bfloat16",), 1, 2),
    "checkpointing": ("backward", ("train.checkpointing=true",), 2, 3),
}
IN_CI = ("twice", "packed", "backward")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in IN_CI else pytest.mark.full) for case in FROM_THE_START]
)
def test_a_card_that_is_full_before_the_first_commit_gives_the_run_that_had_the_small_micro_batch_from_the_start(
    case: str, card: Card, runs: Runs, trial: Trial
) -> None:
    within, settings, fits, since = FROM_THE_START[case]
    small = runs("small", *settings, f"train.micro_batch={fits}")
    card.within, card.rows, card.tokens, card.since = within, fits, fits * 64, since
    result = runs("large", *settings, "train.micro_batch=4", view=card)
    same = adapter_bytes(result) == adapter_bytes(small) and losses(result) == losses(small)
    halvings = [(each["before"], each["micro_batch"], each["step"]) for each in result.record["shrunk"]]
    assert card.shrunk
    assert SAID in card.shrunk[0].why
    assert (card.kept, card.workers) == (0, 0), "nothing of a failed attempt stays in memory"
    wanted = [(4, 2, 0), (2, 1, 0)] if fits == 1 else [(4, 2, 0)]
    trial("P18", same and in_order(runs.folder / "large") and halvings == wanted, case=case, halvings=halvings)


@pytest.mark.parametrize(
    ("settings", "within"),
    [
        ((), "forward"),
        pytest.param(PACKED, "forward", marks=pytest.mark.full),
        pytest.param((), "backward", marks=pytest.mark.full),
        pytest.param((*PACKED, *NOISY), "backward", marks=pytest.mark.full),
    ],
)
def test_a_card_that_is_full_later_goes_back_to_the_last_commit_and_nothing_of_the_failed_attempt_stays(
    settings: tuple[str, ...], within: str, card: Card, runs: Runs, trial: Trial
) -> None:
    """Full at step 7 or already at step 6, both go on from step 5: they have to end with the same bits."""
    ended = {}
    for since in (7, 6):
        card.__init__(rows=2, tokens=128, since=since, within=within)
        result = ended[since] = runs(f"at-{since}", *settings, "train.micro_batch=4", view=card)
        assert [(each["step"], each["micro_batch"]) for each in result.record["shrunk"]] == [(5, 2)]
        assert f"step {since}: {SAID}" in result.record["shrunk"][0]["why"]
        assert in_order(runs.folder / f"at-{since}")
    card.__init__()
    large = runs("large", *settings, "train.micro_batch=4", "lora.dropout=0")
    card.__init__(rows=2, tokens=128, since=7, within=within)
    shrunk = runs("shrunk", *settings, "train.micro_batch=4", "lora.dropout=0", view=card)
    is_same = adapter_bytes(ended[6]) == adapter_bytes(ended[7]) and losses(ended[6]) == losses(ended[7])
    is_near = near(shrunk, large) or bool(NOISY[0] in settings)
    trial("P18", is_same and is_near, case=f"at step 7, {within}", settings=settings)


def test_a_run_that_shrank_keeps_the_small_micro_batch_when_it_continues(card: Card, runs: Runs) -> None:
    card.rows, card.since = 2, 3
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


@pytest.mark.parametrize("settings", [(), pytest.param(PACKED, marks=pytest.mark.full)])
def test_a_card_that_is_full_in_an_evaluation_shrinks_it_too(
    settings: tuple[str, ...], card: Card, runs: Runs, trial: Trial
) -> None:
    evaluated = ("data.validation=9", "evaluation.every=5", "checkpoints.every=2", "lora.dropout=0", *settings)
    small = runs("small", *evaluated, "train.micro_batch=2")
    card.within, card.rows, card.tokens = "evaluation", 2, 128
    result = runs("large", *evaluated, "train.micro_batch=4", view=card)
    assert [each["step"] for each in result.record["shrunk"]] == [4], "the evaluation at step 5 was the first"
    steps = [line["step"] for line in result.evaluations]
    trial("P18", steps == [5, 10] and near(result, small), case="evaluation", steps=steps, settings=settings)


@pytest.mark.parametrize("settings", [(), PACKED])
def test_a_card_that_cannot_hold_one_row_ends_with_80_and_the_sizes(
    settings: tuple[str, ...], card: Card, runs: Runs, trial: Trial
) -> None:
    card.rows = card.tokens = 0
    with pytest.raises(OutOfMemory) as ended:
        runs("run", *settings, "train.micro_batch=2", view=card)
    record = json.loads((runs.folder / "run" / "run.json").read_text(encoding="utf-8"))
    assert ended.value.hint
    assert "--set" in ended.value.hint
    assert "at step 1 with a micro-batch of 1 row(s) of up to 64 tokens: CUDA out of memory" in ended.value.what
    assert not list((runs.folder / "run").glob("checkpoints/*"))
    assert [each["micro_batch"] for each in record["shrunk"]] == [1]
    trial("P18", (record["status"], record["exit_code"]) == ("failed", 80), case="one row", settings=settings)
