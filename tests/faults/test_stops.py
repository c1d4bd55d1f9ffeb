"""P6 at the two places where an engine has to ask by itself: a signal within a step, and within an evaluation.

The first pass there sends the signal to its own process. Signals at any other time are sent by `campaign.stops`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.forking import Command, Forking
from proven import unchecked

from loradock.training.checkpoint.store import visible

pytestmark = pytest.mark.thin(2)

RUN = (
    "train.max_steps=6",
    "train.global_batch=8",
    "train.micro_batch=1",
    "train.packing=true",
    "train.workers=0",
    "data.max_length=64",
    "data.validation=8",
    "evaluation.every=3",
    "checkpoints.every=6",
    "logging.every=1",
    "lora.rank=4",
    "lora.dropout=0.1",
)
# The place is step 5, or the evaluation after step 3.
SENT = """
import os, signal
from pathlib import Path
from faults.seams import SEAMS
passes = Path("passes")
def loss(value, step, is_training):
    if (step, is_training) == PLACE:
        passes.write_text(passes.read_text() + "x" if passes.exists() else "x")
        if passes.read_text() == "x":
            os.kill(os.getpid(), signal.SIGNAL)
    return value
SEAMS["ENGINE"].loss(loss)
"""
PLACES = {
    "step": ("(5, True)", "SIGTERM", 4),
    "evaluation": ("(3, False)", "SIGINT", 3),
    "warned step": ("(5, True)", "SIGUSR1", 4),
}
IN_CI = (("fast", "step"), ("fast", "evaluation"), ("peft", "step"), ("fast", "warned step"))
CASES = [(engine, place) for engine in ("fast", "peft") for place in PLACES]

Start = Callable[..., Command]


@pytest.fixture(scope="module")
def start(llama: Path, rows: Path, forking: Forking) -> Start:
    def begin(folder: Path, *, engine: str, code: str = "") -> Command:
        folder.mkdir(exist_ok=True)
        sets = [word for setting in (*RUN, f"engine={engine}") for word in ("--set", setting)]
        inputs = ("--model", str(llama), "--data", str(rows), "--output", "out", unchecked("signals while it trains"))
        return forking.start(folder, "train", *inputs, *sets, code=code)

    return begin


def adapter(folder: Path) -> bytes:
    return (folder / "out" / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, start: Start) -> Callable[[str], bytes]:
    """The adapter of an engine's run that nobody disturbs, made once."""
    made: dict[str, bytes] = {}

    def run(engine: str) -> bytes:
        if engine not in made:
            place = tmp_path_factory.mktemp("whole")
            undisturbed = start(place, engine=engine)
            assert undisturbed.finish() == 0, undisturbed.text()
            made[engine] = adapter(place)
        return made[engine]

    return run


@pytest.mark.parametrize(
    ("engine", "place"), [pytest.param(*each, marks=[] if each in IN_CI else pytest.mark.full) for each in CASES]
)
def test_a_signal_within_it_ends_it_before_the_next_pass_and_the_last_whole_step_is_committed(
    engine: str, place: str, tmp_path: Path, start: Start, whole: Callable[[str], bytes]
) -> None:
    where, sent, committed = PLACES[place]
    code = SENT.replace("PLACE", where).replace("SIGNAL", sent).replace("ENGINE", engine)
    first = start(tmp_path, engine=engine, code=code)
    assert first.finish() == 75, first.text()
    assert f"stopped by {sent}; step {committed} is committed" in first.text()
    assert (tmp_path / "passes").read_text() == "x", "it ended before the next pass"
    assert [step for step, _ in visible(tmp_path / "out" / "checkpoints")] == [committed]
    again = start(tmp_path, engine=engine)
    assert again.finish() == 0, again.text()
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    steps = {kind: [line["step"] for line in lines if line["kind"] == kind] for kind in ("train", "eval")}
    assert steps == {"train": [1, 2, 3, 4, 5, 6], "eval": [3, 6]}, (
        "an evaluation that was ended is held by what continues"
    )
    assert adapter(tmp_path) == whole(engine)
