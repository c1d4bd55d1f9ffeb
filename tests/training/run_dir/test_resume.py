"""Where a run stands, and what it keeps when it continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loradock.config.load import Loaded, leaves
from loradock.config.schema import RunConfig
from loradock.errors import NoCheckpoint, StorageError, UsageError
from loradock.plan.plan import HELD
from loradock.training.run_dir import resume


def loaded(**sections: Any) -> Loaded:
    config = RunConfig.model_validate({"model": {"name": "./base"}, **sections})
    return Loaded(config=config, origins={}, warnings=())


def write_run(
    directory: Path, config: RunConfig, *, status: str, has_adapter: bool = True, has_begun: bool = True
) -> Path:
    directory.mkdir(parents=True)
    if has_begun:
        (directory / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n', encoding="utf-8")
    content = {"status": status, "config": config.model_dump(mode="json"), "run_id": "1"}
    (directory / "run.json").write_text(json.dumps(content), encoding="utf-8")
    if has_adapter:
        (directory / "adapter").mkdir()
    return directory


def look(asked: Loaded, parent: Path | None = None, **options: Any) -> resume.Standing:
    return resume.look(asked, parent=parent, name="demo", **{"must_exist": False, "allowed": (), **options})


def test_a_named_directory_is_new_unfinished_or_finished(tmp_path: Path) -> None:
    asked = loaded(output=str(tmp_path / "out"))
    assert look(asked) == resume.Standing(state="new", directory=tmp_path / "out", record={})
    write_run(tmp_path / "out", asked.config, status="running", has_adapter=False)
    assert look(asked).state == "unfinished"
    (tmp_path / "out" / "run.json").write_text(
        json.dumps(look(asked).record | {"status": "finished"}), encoding="utf-8"
    )
    assert look(asked).state == "unfinished", "its adapter is gone: it is exported again"
    (tmp_path / "out" / "adapter").mkdir()
    assert look(asked).state == "finished"


def test_a_named_directory_with_another_run_is_refused_and_a_named_change_accepted(tmp_path: Path) -> None:
    asked = loaded(output=str(tmp_path / "out"))
    write_run(tmp_path / "out", asked.config, status="interrupted")
    other = loaded(output=str(tmp_path / "out"), train={"learning_rate": 1e-3})
    with pytest.raises(NoCheckpoint, match="was started with other settings") as refused:
        look(other)
    assert "train.learning_rate was 0.0002, now 0.001" in str(refused.value)
    assert look(other, allowed=("train.learning_rate",)).state == "unfinished"
    assert look(other, allowed=("train",)).state == "unfinished"
    with pytest.raises(UsageError, match="no such field"):
        look(other, allowed=("train.learning_rat",))


def test_a_run_of_which_no_step_was_made_is_what_is_asked_of_it_now(tmp_path: Path) -> None:
    asked = loaded(output=str(tmp_path / "out"))
    run = write_run(tmp_path / "out", asked.config, status="failed", has_adapter=False, has_begun=False)
    other = loaded(output=str(tmp_path / "out"), model={"name": "owner/name"}, train={"learning_rate": 1e-3})
    assert look(other).state == "unfinished"
    assert look(other, must_exist=True).state == "unfinished"
    begun = resume.read(run) | {"data": {"sources": []}, "working_directory": "/tmp"}
    (run / "run.json").write_text(json.dumps(begun))
    assert not {"config", "data", "working_directory"} & {*resume.taken_up(run).record}
    (run / "checkpoints" / "damaged-1").mkdir(parents=True)
    with pytest.raises(NoCheckpoint, match="was started with other settings"):
        look(other)
    assert resume.taken_up(run).record["config"] == asked.config.model_dump(mode="json")
    assert resume.taken_up(run).record == begun


def test_insisting_on_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint, match="no run"):
        look(loaded(output=str(tmp_path / "out")), must_exist=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("status", "is_same", "continued"),
    [("running", True, "demo-002"), ("finished", True, None), ("running", False, "demo-001")],
)
def test_of_numbered_runs_the_last_that_is_the_same_is_continued_where_it_is_unfinished(
    tmp_path: Path, status: str, is_same: bool, continued: str | None
) -> None:
    asked = loaded()
    write_run(tmp_path / "demo-001", asked.config, status="running")
    last = asked if is_same else loaded(train={"seed": 7})
    write_run(tmp_path / "demo-002", last.config, status=status)
    found = look(asked, parent=tmp_path)
    assert (found.state, found.directory) == (("unfinished", tmp_path / continued) if continued else ("new", None))


def test_a_broken_record_is_an_error_where_the_directory_was_named_and_passed_over_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "demo-001").mkdir()
    (tmp_path / "demo-001" / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(StorageError, match="not JSON"):
        look(loaded(output=str(tmp_path / "demo-001")))
    assert look(loaded(), parent=tmp_path).state == "new"


def test_what_was_decided_is_held_where_nothing_else_is_asked(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"train": {"micro_batch": 8, "packing": False}})
    decided = {"device": "cpu", "packing": True, "micro_batch": 4, "attention": "sdpa", "unknown": 1}
    held, names = resume.held(config, decided, asked_anew=())
    assert (held.device, held.train.packing, held.train.micro_batch, held.model.attention) == ("cpu", False, 4, "sdpa")
    assert set(names) == {"device", "micro_batch", "attention"}
    anew, _ = resume.held(config, decided, asked_anew=("train.micro_batch",))
    assert anew.train.micro_batch == 8


def test_every_held_decision_has_its_key_in_the_configuration() -> None:
    assert {".".join(path) for path in HELD.values()} <= leaves(RunConfig()).keys()


@pytest.mark.parametrize(("engine", "now"), [("trl", "peft"), ("sharded", "fsdp")])
def test_a_run_of_an_engine_of_before_is_refused_by_name(engine: str, now: str, tmp_path: Path) -> None:
    asked = loaded(output=str(tmp_path / "out"))
    run = write_run(tmp_path / "out", asked.config, status="interrupted", has_adapter=False)
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    record["config"]["engine"] = engine
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(NoCheckpoint, match=f"begun with engine {engine}, which engine {now} has replaced"):
        look(asked)


def test_an_engine_that_was_decided_before_is_left_to_the_fingerprint() -> None:
    config, names = resume.held(loaded().config, {"engine": "trl", "packing": True}, asked_anew=())
    assert (config.engine, config.train.packing, names) == ("auto", True, ["packing"])
