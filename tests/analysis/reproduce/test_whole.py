"""Whole repeats by the typed commands: of each kind of run the same adapter, also with all that is honest at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.seams import SEAMS
from faults.test_out_of_memory import RUN, Card
from proven import unchecked
from tiny import write_pairs, write_rows
from whole_runs import train

from loradock.demo.exam import DIRECTORY
from loradock.errors import UsageError
from loradock.machine.library_variables import ALLOCATOR
from loradock.training.loop import Loop

pytestmark = pytest.mark.full
BASE = DIRECTORY / "base"
COMMON = ("--max-steps", "6", "--batch-size", "4", "--eval-steps", "3")
SETTINGS = ("data.max_length=64", "lora.dropout=0.1", "lora.rank=4", "logging.every=1")
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {  # files of rows, settings, processes
    "supervised": (("rows",), ("data.validation=0.1",), 1),
    "mixed sources": (("rows", "rows-2"), ("data.sources.1.weight=0.5",), 1),
    "peft": (("rows",), ("engine=peft",), 1),
    "preference": (("preferences",), ("objective=preference",), 1),
    "embedding": (("pairs",), ("objective=embedding", "embedding.global_batch=8"), 1),
    "gritlm": (("pairs", "rows"), ("objective=gritlm", "embedding.global_batch=8"), 1),
    "two processes": (("rows",), (), 2),
}
HONEST = {"HOME": "/nonexistent", "TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "7", "USER": "somebody"}


def loradock(*words: str, cwd: Path, more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LORADOCK_CACHE": str(cwd / "cache"), **(more or {})}
    command = [sys.executable, "-m", "loradock", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def write_preferences(file: Path, *, seed: int) -> None:
    rows = [{"prompt": f"{seed} and {i}?", "chosen": f"It is {seed + i}.", "rejected": "No."} for i in range(24)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_repeat_has_the_same_adapter(kind: str, tmp_path: Path) -> None:
    names, settings, processes = KINDS[kind]
    skipped = unchecked("what is proven is that two trainings are equal")
    writers = {"rows": write_rows, "pairs": write_pairs, "preferences": write_preferences}
    for name in names:
        writers[name.removesuffix("-2")](tmp_path / f"{name}.jsonl", seed=len(name))
    data = [word for name in names for word in ("--data", f"{name}.jsonl")]
    more = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    launcher = ("launch", "--nproc", str(processes)) if processes > 1 else ()
    trained = loradock(
        *launcher, "train", "--model", str(BASE), *data, *COMMON, *more, skipped, "--output", "run", cwd=tmp_path
    )
    assert trained.returncode == 0, trained.stderr
    (tmp_path / "elsewhere").mkdir()
    again = ("reproduce", "../run", "--whole", skipped)
    repeated = loradock(*again, cwd=tmp_path / "elsewhere", more=HONEST if kind == "supervised" else None)
    assert repeated.returncode == 0, repeated.stderr + repeated.stdout
    assert "identical to step 6, with the same adapter" in repeated.stdout


def test_a_run_that_went_on_with_a_smaller_micro_batch_is_repeated_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is full from the seventh step on: the run went back to its checkpoint at the fifth."""
    card, real = Card(), Loop.run

    def run(loop: Loop) -> object:
        card.is_watched = True
        try:
            return real(loop)
        finally:
            card.is_watched = False

    monkeypatch.setattr(Loop, "run", run)
    for name, value in ALLOCATOR.items():
        monkeypatch.setenv(name, value)
    for seams in SEAMS.values():
        seams.passes(card.hold, patch=monkeypatch.setattr)
    rows = write_rows(tmp_path / "rows.jsonl")
    card.holds(2, of=("train.packing=false",), within="forward", since=7)
    settings = (*RUN, "train.packing=false", "train.micro_batch=4", "engine=fast", "logging.every=1")
    result = train(tmp_path / "run", *settings, model=BASE, data=rows, view=card)
    assert [each["step"] for each in result.record["shrunk"]] == [5]
    whole = loradock("reproduce", "run", "--whole", cwd=tmp_path)
    assert whole.returncode == UsageError.exit_code
    assert "from step 6 on the run had micro-batch 2, and 4 before" in whole.stderr
    again = loradock("reproduce", "run", unchecked("what is proven is that two trainings are equal"), cwd=tmp_path)
    assert again.returncode == 0, again.stderr + again.stdout
    assert again.stdout.strip().endswith("identical to step 5")
