"""The run record: whole at any moment, complete also when a run fails, and written by rank 0 alone."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from facts.recorded import machine

from loradock.config.schema import RunConfig
from loradock.training.run_dir.record import RunRecord, sha256

REWRITE = """
import sys
from pathlib import Path
from facts.recorded import machine
from loradock.config.schema import RunConfig
from loradock.training.run_dir.record import RunRecord
record = RunRecord(Path(sys.argv[1]), config=RunConfig(), origins={}, facts=machine())
print("ready", flush=True)
for turn in range(400):
    record.put(turn=turn, ballast=["x" * 1000] * (turn % 50))
"""


def begun(directory: Path, **known: Any) -> RunRecord:
    return RunRecord(directory, config=RunConfig(), origins={"device": "default"}, facts=machine("h200", **known))


def read(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "run.json").read_text(encoding="utf-8"))


def test_a_run_is_on_record_from_its_first_moment(tmp_path: Path) -> None:
    begun(tmp_path)
    content = read(tmp_path)
    assert content["status"] == "running"
    assert content["config"]["train"]["global_batch"] == 16
    assert content["origins"] == {"device": "default"}
    assert content["facts"]["gpus"][0]["name"] == "NVIDIA H200"
    assert content["facts"]["packages"]["torch"] == "2.10.0"


def test_a_reader_never_sees_half_a_record(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REWRITE, str(tmp_path)]
    seen = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        while writer.poll() is None:
            seen.add(read(tmp_path).get("turn", -1))
    assert writer.returncode == 0
    assert len(seen) > 5
    assert read(tmp_path)["turn"] == 399
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_the_hash_of_a_file_is_that_of_hashlib(tmp_path: Path) -> None:
    for size in (0, 1, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, 9_000_000):
        file = tmp_path / "weights"
        file.write_bytes(bytes(range(256)) * (size // 256) + b"z" * (size % 256))
        assert sha256(file, unless=threading.Event()) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_finished_run_has_the_hashes_of_its_weights_and_its_time(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    record = begun(tmp_path)
    record.hash_weights([weights])
    record.timing("training", 1.23456)
    record.end("finished", exit_code=0)
    content = read(tmp_path)
    assert content["weights_sha256"] == {"model.safetensors": hashlib.sha256(b"weights").hexdigest()}
    assert content["timings_seconds"]["training"] == 1.235
    assert content["timings_seconds"]["total"] >= 0
    assert (content["status"], content["exit_code"], content["error"]) == ("finished", 0, None)
    assert content["started"] <= content["ended"]


def test_what_the_process_did_before_its_record_is_part_of_the_total(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.spent_before({"start": 4.0, "env-check": 96.6})
    record.end("failed", exit_code=79)
    taken = read(tmp_path)["timings_seconds"]
    assert (taken["start"], taken["env-check"]) == (4.0, 96.6)
    assert taken["total"] >= 100.6


def test_a_failed_run_keeps_what_was_known_and_says_why(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.put(plan={"decisions": []})
    record.end("failed", exit_code=79, error="error: training diverged")
    content = read(tmp_path)
    assert content["plan"] == {"decisions": []}
    assert (content["status"], content["exit_code"]) == ("failed", 79)
    assert "diverged" in content["error"]


def test_a_failed_run_does_not_wait_for_all_its_weights_to_be_hashed(tmp_path: Path) -> None:
    weights = tmp_path / "shard"
    with weights.open("wb") as stream:
        stream.truncate(256 << 20)
    shards = [tmp_path / f"shard-{number}" for number in range(40)]
    for shard in shards:
        shard.hardlink_to(weights)
    record = begun(tmp_path)
    record.hash_weights(shards)
    record.end("failed", exit_code=70, error="error")
    assert len(read(tmp_path)["weights_sha256"]) < 5


def test_weights_that_cannot_be_read_do_not_keep_the_record_from_ending(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.hash_weights([tmp_path / "gone"])
    record.end("finished", exit_code=0)
    assert read(tmp_path)["status"] == "finished"
    assert read(tmp_path)["weights_sha256"] == {}


def test_metrics_are_lines_of_json_and_read_back_by_kind(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.metric("train", {"step": 1, "loss": 2.5})
    record.metric("eval", {"step": 1, "loss": 2.0})
    record.metric("train", {"step": 2, "loss": 1.5})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [("train", 1), ("eval", 1), ("train", 2)]
    assert [line["loss"] for line in record.metrics("train")] == [2.5, 1.5]
    assert record.metrics("checkpoint") == []


def test_a_resumed_run_forgets_later_lines_and_half_of_one(tmp_path: Path) -> None:
    record = begun(tmp_path)
    for step in range(1, 6):
        record.metric("train", {"step": step, "loss": 2.0})
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text(encoding="utf-8") + '{"kind": "train", "st', encoding="utf-8")
    resumed = begun(tmp_path)
    resumed.rewind(3)
    resumed.metric("train", {"step": 4, "loss": 2.0})
    assert [line["step"] for line in resumed.metrics("train")] == [1, 2, 3, 4]


@pytest.mark.parametrize("rank", [1, 7])
def test_other_ranks_keep_a_record_without_writing_it(tmp_path: Path, rank: int) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"weights")
    record = begun(tmp_path, rank=rank, world_size=8)
    record.put(plan={})
    record.metric("train", {"step": 1})
    record.hash_weights([weights])
    record.rewind(0)
    record.end("finished", exit_code=0)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
    assert record.content["status"] == "finished"
    assert record.metrics("train") == []


def test_the_clock_of_a_run_is_utc_to_the_millisecond(tmp_path: Path) -> None:
    before = time.time()
    begun(tmp_path)
    started = datetime.fromisoformat(read(tmp_path)["started"])
    assert started.utcoffset() is not None
    assert abs(started.timestamp() - before) < 5
