"""run.json, metrics.jsonl and status.json that another version or a person wrote: told with file and field."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from loradock.errors import NoCheckpoint, StorageError
from loradock.training.checkpoint.manifest import DamagedCheckpoint, open_checkpoint, text
from loradock.training.checkpoint.store import Checkpoint
from loradock.training.lineage import Lineage
from loradock.training.run_dir import recorded, resume
from loradock.training.run_dir.listing import listed
from loradock.training.run_dir.record import metrics
from loradock.training.saving import Progress

NESTED: Any = [[[]]]


def write(directory: Path, **content: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("field", "content"),
    [
        ("attempts", {"attempts": 3}),
        ("attempts.0.resumed_from", {"attempts": [{"resumed_from": "checkpoint-x"}]}),
        ("fingerprint.seed", {"fingerprint": {"seed": 1}}),
        ("started", {"started": "yesterday"}),
        ("base.path", {"base": {"name": "a", "revision": None}}),
        ("data.sources.0.sha256", {"data": {"sources": [{"path": "a"}]}}),
        ("outcome.steps", {"outcome": {"steps": "4", "ended": "last step"}}),
        ("adapter_sha256.../../etc/passwd.[key]", {"adapter_sha256": {"../../etc/passwd": "0"}}),
        ("plan.decisions", {"plan": {"decisions": "none"}}),
        ("facts.cpus", {"facts": {"cpus": "two"}}),
        ("alerts.0.name", {"alerts": [{}]}),
    ],
)
def test_a_field_that_holds_something_else_is_named(tmp_path: Path, field: str, content: dict[str, Any]) -> None:
    with pytest.raises(StorageError) as told:
        recorded.read(write(tmp_path, **content))
    assert f"{tmp_path / 'run.json'}: {field}: " in str(told.value)


@pytest.mark.parametrize("content", ["[]", "7", "[" * 9999, '{"name": "\\u0000"}', "{"])
def test_what_is_no_record_at_all_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(StorageError, match=r"run\.json"):
        recorded.read(tmp_path)


def test_a_pipe_in_the_place_of_the_record_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(StorageError, match="not a regular file"):
        recorded.read(tmp_path)


def test_a_configuration_of_another_version_is_told_by_key(tmp_path: Path) -> None:
    record = {"config": {"lora": {"rank": -1}, "later": 1}}
    with pytest.raises(StorageError) as told:
        resume.recorded_config(record, tmp_path)
    assert "config.lora.rank: " in str(told.value)
    assert "config.later: " in str(told.value)
    with pytest.raises(StorageError, match="config is missing"):
        resume.recorded_config({}, tmp_path)
    with pytest.raises(StorageError, match="config"):
        resume.recorded_config({"config": {"engine": []}}, tmp_path)


def test_a_record_that_does_not_say_what_was_trained_gives_no_lineage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="base is missing"):
        Lineage.recorded({"config": {}}, tmp_path)
    decided = {"decisions": [{"name": "compute_dtype", "value": "float8", "why": ""}]}
    base = {"name": "a", "path": "a", "revision": None}
    with pytest.raises(StorageError, match="load_dtype"):
        Lineage.recorded({"config": {}, "base": base, "plan": decided}, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "train", "step": "3", "loss": 1.0},
        {"kind": "train", "step": -1, "loss": 1.0},
        {"kind": "train", "step": 3, "loss": "low"},
        {"kind": "train", "step": 3},
        {"kind": "train", "step": 3, "loss": 1.0, "seconds": {}},
        {"kind": "train", "step": 3, "loss": 10**400},
        {"kind": "eval", "step": 3, "loss": 1.0, "loss_chat": None},
        {"kind": ["train"], "step": 3},
        [1, 2],
    ],
)
def test_a_metric_line_that_was_edited_is_passed_over(tmp_path: Path, line: Any) -> None:
    good = {"kind": "train", "step": 2, "loss": 1.5}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(good)}\n", encoding="utf-8")
    assert [*metrics(tmp_path, "train"), *metrics(tmp_path, "eval")] == [good]


def test_runs_are_listed_beside_one_that_was_edited(tmp_path: Path) -> None:
    write(tmp_path / "a", status="finished", started="2026-01-01T00:00:00+00:00")
    write(tmp_path / "b", status="finished", started=5)
    status = {"state": NESTED, "step": "many", "total_steps": -1, "pid": "\0", "host": os.uname().nodename}
    write(tmp_path / "c", status="running", started="2026-01-02T00:00:00+00:00")
    (tmp_path / "c" / "status.json").write_text(json.dumps(status), encoding="utf-8")
    assert [(Path(run.directory).name, run.state, run.step) for run in listed(tmp_path)] == [
        ("b", "unreadable", None),
        ("a", "finished", None),
        ("c", "setup", None),
    ]


def test_the_record_that_goes_with_an_adapter_is_no_run_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "a", status="finished", started="2026-01-01T00:00:00+00:00")
    enclosed = tmp_path / "a" / "adapter" / "run"
    write(enclosed, status="finished", started="2026-01-01T00:00:00+00:00")
    (enclosed.parent / "adapter_config.json").write_text("{}", encoding="utf-8")
    write(tmp_path / "mine" / "run", status="finished", started="2026-01-02T00:00:00+00:00")
    names = [run.directory for run in listed(tmp_path)]
    assert names == [str(tmp_path / "a"), str(tmp_path / "mine" / "run")]
    assert listed(enclosed.parent) == []


def checkpoint(progress: Any) -> Checkpoint:
    about = {"run_id": "1", "time": "", "fingerprint": {}, "files": {}, "sizes_bytes": {}}
    return Checkpoint(path=Path("run/checkpoints/checkpoint-2"), step=2, progress=progress, **about)


@pytest.mark.parametrize("progress", [{"step": "2"}, {"decided": {}}, {"step": 2, "decided": {}, "best_loss": "x"}])
def test_a_progress_of_another_version_is_no_checkpoint(progress: dict[str, Any]) -> None:
    with pytest.raises(NoCheckpoint, match="progress"):
        Progress.of(checkpoint(progress))


def test_what_a_checkpoint_decided_has_to_be_known() -> None:
    from loradock.config.schema import RunConfig

    with pytest.raises(NoCheckpoint, match="optimizer"):
        resume.held(RunConfig(), {"optimizer": "sgd"}, asked_anew=())


@pytest.mark.parametrize(
    "parts",
    [
        {"files": {"../x": {"bytes": 0, "sha256": ""}}},
        {"files": {"x": 3}},
        {"files": {"x": {"bytes": True, "sha256": ""}}},
        {"fingerprint": {"seed": 1}},
        {"step": True},
    ],
)
def test_a_manifest_whose_digest_agrees_but_no_field_is_damage(tmp_path: Path, parts: dict[str, Any]) -> None:
    content = {"format": 1, "run_id": "1", "step": 2, "time": "", "fingerprint": {}, "progress": {}, "files": {}}
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "manifest.json").write_bytes(text(content | parts))
    with pytest.raises(DamagedCheckpoint):
        open_checkpoint(tmp_path / "checkpoint-2")
