"""A model that the fast engine does not compute rightly: with engine auto the run goes on with TRL, by name it ends.

Real commands; the fault is planted in the process: LoRA's scale is off by one per cent in one layer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faults.forking import Forking
from faults.pairs import arguments, begun

SPOILT = """
import os
from dataclasses import replace
from loradock.training.backends.fast.layer import Layer
real = Layer.__init__
def init(self, *arguments, index, **more):
    real(self, *arguments, index=index, **more)
    if index == 1 and os.environ.get("RANK", "{rank}") == "{rank}":
        self.mlp.down.adapters = [replace(each, scale=each.scale * 1.01) for each in self.mlp.down.adapters]
Layer.__init__ = init
"""
SETTINGS = ("train.max_steps=2", "checkpoints.every=2")
WRONG = "the fast engine does not compute what PEFT computes"


def words(model: Path, data: Path, *, engine: str) -> list[str]:
    return arguments(model, data, *SETTINGS, engine=engine)


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "run.json").read_text(encoding="utf-8"))


def engine_decision(folder: Path) -> dict[str, Any]:
    return next(each for each in record(folder)["plan"]["decisions"] if each["name"] == "engine")


def adapter(folder: Path) -> bytes:
    return (folder / "out" / "adapter" / "adapter_model.safetensors").read_bytes()


def test_with_engine_auto_the_run_warns_and_goes_on_with_trl_as_if_it_had_been_asked_for(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    folders = {engine: tmp_path / engine for engine in ("auto", "peft")}
    for engine, folder in folders.items():
        folder.mkdir()
        command = forking.start(folder, *words(llama, rows, engine=engine), code=SPOILT.format(rank=0))
        assert command.finish() == 0, command.text()
        assert (f"warning: {WRONG}" in command.text()) == (engine == "auto")
    found = engine_decision(folders["auto"])
    assert found["value"] == "peft"
    assert found["why"].startswith(
        f"the fast engine cannot be used: {WRONG}: documents do not see one another; relative"
    )
    assert adapter(folders["auto"]) == adapter(folders["peft"])
    longer = ["--set", "train.max_steps=3", "--allow-change", "train.max_steps", "--allow-change", "plan.steps"]
    again = forking.start(folders["auto"], *words(llama, rows, engine="auto"), *longer)
    assert again.finish() == 0, again.text()
    assert "continuing from checkpoint-2" in again.text()
    assert engine_decision(folders["auto"])["value"] == "peft", "a run does not change its engine on the way"


def test_the_fast_engine_by_name_ends_the_run_before_a_step(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    command = forking.start(tmp_path, *words(llama, rows, engine="fast"), code=SPOILT.format(rank=0))
    assert command.finish() == 78, command.text()
    assert WRONG in command.text()
    assert "--set engine=peft" in command.text()
    assert record(tmp_path)["status"] == "failed"


@pytest.mark.parametrize(("engine", "code"), [("auto", 0), ("fast", 78)])
def test_where_one_process_finds_it_wrong_all_do_the_same(
    engine: str, code: int, tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    pair = begun(forking, tmp_path, words(llama, rows, engine=engine), code=SPOILT.format(rank=1))
    assert pair.finish() == [code, code], pair.text()
    assert f"rank 1: {WRONG}" in pair.launcher[0].text()
    assert engine_decision(tmp_path)["value"] == ("peft" if engine == "auto" else "fast")
