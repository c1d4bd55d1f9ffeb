"""`loradock train` as a user types it: whole processes, their output, their files and their exit codes.

Most are forked from one that has all imported; the demo, cold as a user's, is in env_check/test_kept_by_train.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.forking import Forking
from proven import unchecked
from safetensors.torch import load_file
from tiny import write_rows
from whole_runs import train

from loradock.machine import Host
from loradock.training.claiming import process_seconds, spent_so_far

ROOT = Path(__file__).parents[2]
RUN = ("--batch-size", "8", "--set", "lora.rank=4", "--set", "logging.every=1")
PLAIN_PEFT = """
import json, sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
base, adapter, ids = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
torch.set_num_threads(1)
bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                          bnb_4bit_compute_dtype=torch.float32)
model = AutoModelForCausalLM.from_pretrained(base, quantization_config=bits, dtype=torch.float32)
model = PeftModel.from_pretrained(model, adapter).eval()
for layer in model.modules():
    if hasattr(layer, "support_avx512bf16_for_cpu"):
        layer.support_avx512bf16_for_cpu = False  # else some CPUs compute in bfloat16
with torch.no_grad():
    print(json.dumps(model(input_ids=torch.tensor([ids])).logits[0, -1].tolist()))
"""


def cold(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A Python that runs a command line in `cwd`."""
    environment = os.environ | {"LORADOCK_CACHE": str(cwd / "cache"), "NO_COLOR": "1"}
    whole = [sys.executable, "-m", *command]
    return subprocess.run(whole, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)


def loradock(forking: Forking, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`loradock train` with `arguments` in `cwd`, forked; the environment is not looked at."""
    return forking.run(cwd, "train", *arguments, unchecked("the demo's test checks"))


def inputs(model: Path, data: Path) -> tuple[str, ...]:
    return "--model", str(model), "--data", str(data)


def test_the_adapter_gives_the_same_logits_in_plain_peft_in_another_process(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    ids = list(range(5, 25))

    def exam(model: torch.nn.Module, _: object) -> dict[str, list[float]]:
        model.eval()
        with torch.no_grad():
            return {"logits": model(input_ids=torch.tensor([ids])).logits[0, -1].tolist()}

    settings = ("train.max_steps=4", "train.learning_rate=1e-2", "lora.rank=4")
    result = train(tmp_path / "run", *settings, model=llama, data=rows, exam=exam)
    command = [sys.executable, "-c", PLAIN_PEFT, str(llama), str(result.adapter), json.dumps(ids)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    scores = result.record["exam"]
    assert json.loads(done.stdout) == scores["after"]["logits"]
    assert scores["before"]["logits"] != scores["after"]["logits"]


@pytest.mark.thin(3)
def test_two_processes_give_the_losses_of_one(tmp_path: Path, llama: Path, rows: Path, forking: Forking) -> None:
    arguments = (*inputs(llama, rows), *RUN, "--max-steps", "4", "--set", "data.validation=7", "--lr", "1e-3")
    packed = ("--set", "train.packing=true", "--set", "data.max_length=64", "--set", "train.micro_batch=2")
    one = loradock(forking, *arguments, *packed, "--output", "one", cwd=tmp_path)
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "loradock", "train")
    two = cold(*torchrun, *arguments, *packed, "--output", "two", unchecked("two processes"), cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    assert two.returncode == 0, two.stderr
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("one", "two")
    ]
    for kind in ("train", "eval"):
        single, double = ([line["loss"] for line in run if line["kind"] == kind] for run in lines)
        assert double == pytest.approx(single, rel=1e-4)
    tensors = [load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("one", "two")]
    for name, tensor in tensors[0].items():
        torch.testing.assert_close(tensors[1][name], tensor, rtol=1e-2, atol=1e-4)


@pytest.mark.thin(6)
def test_two_processes_with_one_sample_a_step_are_refused_before_any_row_is_read(tmp_path: Path, llama: Path) -> None:
    arguments = (*inputs(llama, tmp_path / "rows.jsonl"), "--batch-size", "1", unchecked("bad rows"))
    (tmp_path / "rows.jsonl").write_text("{broken\n", encoding="utf-8")
    done = cold("loradock", "launch", "--nproc", "2", "train", *arguments, cwd=tmp_path)
    assert done.returncode == 78, done.stderr
    assert "2 processes (GPUs times machines), and train.global_batch is 1" in done.stderr


def test_the_same_command_shows_a_finished_run_and_fresh_starts_beside_it(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    arguments = (*inputs(llama, rows), *RUN, "--output", "out", "--max-steps", "2")
    first = loradock(forking, *arguments, "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    record = json.loads(first.stdout)
    assert record["status"] == "finished"
    began = time.monotonic()
    again = loradock(forking, *arguments, cwd=tmp_path)
    assert (again.returncode, "the run in out is finished" in again.stderr) == (0, True)
    assert "finished: 2 steps (last step)" in again.stdout
    assert time.monotonic() - began < 10
    assert json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))["ended"] == record["ended"]
    other = loradock(forking, *arguments, "--lr", "1e-3", cwd=tmp_path)
    assert (other.returncode, "train.learning_rate was 0.0002, now 0.001" in other.stderr) == (83, True)
    missing = loradock(forking, *inputs(llama, rows), "--output", "elsewhere", "--resume", cwd=tmp_path)
    assert missing.returncode == 83
    fresh = loradock(forking, *arguments, "--lr", "1e-3", "--fresh", cwd=tmp_path)
    assert fresh.returncode == 0, fresh.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("out")) == ["out", "out-002"]


@pytest.mark.thin(6)
def test_a_reader_of_the_output_that_ends_does_not_end_the_run(tmp_path: Path, llama: Path, rows: Path) -> None:
    words = [*inputs(llama, rows), *RUN, "--output", "out", "--max-steps", "6", unchecked("an output that is not read")]
    piped = '"$@" 2>&1 | sed "/step 2\\//q"; exit "${PIPESTATUS[0]}"'
    command = ["bash", "-c", piped, "bash", sys.executable, "-m", "loradock", "train", *words]
    environment = os.environ | {"LORADOCK_CACHE": str(tmp_path / "cache"), "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "step 2/6" in done.stdout.splitlines()[-1]
    record = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert (record["status"], record["outcome"]["steps"]) == ("finished", 6)
    assert record["output_lost"] == {"stderr": "Broken pipe"}
    for option, code in (("--json", 73), ("--resume", 0)):  # the record as JSON is a result, the summary is none
        full = ["bash", "-c", 'exec "$@" >/dev/full', "bash", *command[4:], option]
        again = subprocess.run(full, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert (again.returncode, "No space left on device" in again.stderr) == (code, code == 73), again.stderr


def test_a_run_that_was_cut_off_continues_by_the_same_command_and_by_resume(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    arguments = (*inputs(llama, rows), *RUN, "--output", "out", "--max-steps", "6")
    arguments = (*arguments, "--set", "checkpoints.every=2")
    whole = loradock(forking, *arguments, "--set", "checkpoints.keep=9", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    run = tmp_path / "out"
    weights = (run / "adapter" / "adapter_model.safetensors").read_bytes()
    for _ in range(2):
        record = json.loads((run / "run.json").read_text(encoding="utf-8"))
        (run / "run.json").write_text(json.dumps(record | {"status": "running"}), encoding="utf-8")
        for step in (5, 6):
            if (checkpoint := run / "checkpoints" / f"checkpoint-{step}").exists():
                shutil.rmtree(checkpoint)
        command = ("--resume", "--output", "out") if record.get("attempts") else arguments
        again = loradock(forking, *command, cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        assert "continuing from checkpoint-4" in again.stderr
        assert (run / "adapter" / "adapter_model.safetensors").read_bytes() == weights
    assert len(json.loads((run / "run.json").read_text(encoding="utf-8"))["attempts"]) == 2


def test_bad_input_ends_with_its_code_before_the_model_is_loaded(tmp_path: Path, llama: Path, forking: Forking) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"instruction": "a", "output": "b"}\n{"instruction": "a"}\n{"output": 3}\n', encoding="utf-8")
    data = loradock(forking, *inputs(llama, bad), "--output", "out", cwd=tmp_path)
    assert data.returncode == 65
    assert "bad.jsonl:2" in data.stderr
    assert "bad.jsonl:3" in data.stderr
    assert "base model" not in data.stderr
    config = loradock(forking, *inputs(llama, bad), "--set", "train.learning_rat=1", cwd=tmp_path)
    assert (config.returncode, "did you mean" in config.stderr) == (78, True)
    model = loradock(forking, *inputs(tmp_path / "llamma", bad), "--output", "out2", cwd=tmp_path)
    assert model.returncode == 66
    good = tmp_path / "good.jsonl"
    good.write_text('{"instruction": "a", "output": "b"}\n', encoding="utf-8")
    blocked = loradock(forking, *inputs(llama, good), "--output", "bad.jsonl/out", cwd=tmp_path)
    assert blocked.returncode == 77
    assert "Traceback" not in data.stderr + config.stderr + model.stderr + blocked.stderr


def test_a_finished_run_whose_rows_are_others_now_is_refused_and_one_whose_rows_are_gone_is_not(
    tmp_path: Path, llama: Path, forking: Forking
) -> None:
    data = write_rows(tmp_path / "data.jsonl", rows=8, seed=1)
    held_out = write_rows(tmp_path / "held_out.jsonl", rows=4, seed=2)
    words = (*inputs(llama, data), "--set", f"data.validation={held_out}", "--max-steps", "1", "--output", "out")
    assert loradock(forking, *words, cwd=tmp_path).returncode == 0
    assert loradock(forking, *words, cwd=tmp_path).returncode == 0
    record = (tmp_path / "out" / "run.json").read_bytes()
    write_rows(data, rows=8, seed=3)
    changed = loradock(forking, *words, cwd=tmp_path)
    assert (changed.returncode, "data.jsonl changed" in changed.stderr) == (83, True)
    assert "--fresh" in changed.stderr
    other = write_rows(tmp_path / "other.jsonl", rows=8, seed=4)
    named = loradock(forking, *inputs(llama, other), *words[len(inputs(llama, data)) :], cwd=tmp_path)
    assert (named.returncode, "other.jsonl changed" in named.stderr) == (83, True)
    write_rows(data, rows=8, seed=1)
    write_rows(held_out, rows=4, seed=5)
    assert "held_out.jsonl changed" in loradock(forking, *words, cwd=tmp_path).stderr
    held_out.unlink()
    assert loradock(forking, *words, cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "run.json").read_bytes() == record


class Began:
    """A host on which this process began this many seconds ago."""

    def __init__(self, seconds: float) -> None:
        ticks = round((time.clock_gettime(time.CLOCK_BOOTTIME) - seconds) * os.sysconf("SC_CLK_TCK"))
        self.stat = f"1 (python (a) b) S {' '.join(['0'] * 18)} {ticks} 0 0\n"

    def read_text(self, path: str) -> str | None:
        return self.stat if path == "/proc/self/stat" else None


def test_the_time_before_a_run_is_told_by_stage() -> None:
    host: Any = Began(1000.0)
    spent = spent_so_far(host, {"seconds": 960.0})
    assert spent["env-check"] == 960.0
    assert 39 < spent["start"] < 500
    assert set(spent_so_far(host, {"skipped": "--skip-env-check"})) == {"start"}
    assert process_seconds(Host()) > 0.1


def test_inputs_that_are_not_there_are_told_all_at_once_before_the_machine_is_looked_at(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    one = forking.start(tmp_path, "train", *inputs(llama, rows.with_name("rowz.jsonl")))
    assert one.finish() == 66, one.text()
    assert "environment" not in one.text()
    assert f"hint: did you mean {rows}?" in one.text()
    named = (*inputs(llama.parent / "nope", rows), "--data", "rows.jsnl", "--set", "data.validation=held.jsonl")
    both = forking.start(tmp_path, "train", *named, "--set", "data.template=chat.jinja")
    assert both.finish() == 66, both.text()
    assert "error: 4 input files cannot be read" in both.text()
    assert all(word in both.text() for word in ("nope", "rows.jsnl", "held.jsonl", "chat.jinja"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.thin(3)
def test_what_needs_no_computing_is_refused_before_the_machine_computes(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(rows.read_text(encoding="utf-8") + "{\n", encoding="utf-8")
    asked = {
        65: inputs(llama, bad),
        78: (*inputs(llama, rows), "--set", "lora.targets=[q_prj]"),
        66: (*inputs(llama, rows), "--set", "data.template=chat.jinja"),
    }
    for code, arguments in asked.items():
        run = forking.start(tmp_path, "train", *arguments, "--output", f"out-{code}")
        assert run.finish() == code, run.text()
        assert "env-check ..." not in run.text()
        record = tmp_path / f"out-{code}" / "run.json"
        if record.exists():  # a template that is not there is reported before there is a run
            assert json.loads(record.read_text(encoding="utf-8"))["env_check"]["level"] == "quick"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_with_a_checkpoint_and_a_record(
    sent: signal.Signals, tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    endless = (
        *inputs(llama, rows),
        *RUN,
        "--max-steps",
        "100000",
        "--output",
        "out",
        unchecked("signals while it trains"),
    )
    run = forking.start(tmp_path, "train", *endless)
    assert run.wait_until((tmp_path / "out" / "metrics.jsonl").exists), run.text()
    os.kill(run.process, sent)
    code, errors = run.finish(), run.text()
    assert code == 75, errors
    record = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert (record["status"], record["exit_code"]) == ("interrupted", 75)
    assert "Traceback" not in errors
    last = json.loads((tmp_path / "out" / "status.json").read_text(encoding="utf-8"))["last_checkpoint"]
    assert last in errors.replace("step ", "checkpoint-")
    assert (tmp_path / "out" / "checkpoints" / last / "manifest.json").exists()


@pytest.mark.thin(6)
def test_a_run_whose_output_and_messages_cannot_be_written_finishes_with_0(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    words = [*inputs(llama, rows), *RUN, "--output", "out", "--max-steps", "2", unchecked("output to a full disk")]
    command = ["bash", "-c", 'exec "$@" >/dev/full 2>/dev/full', "bash", sys.executable, "-m", "loradock", "train"]
    environment = os.environ | {"LORADOCK_CACHE": str(tmp_path / "cache")}
    assert subprocess.run([*command, *words], cwd=tmp_path, env=environment, timeout=600).returncode == 0
    status = json.loads((tmp_path / "out" / "status.json").read_text(encoding="utf-8"))
    assert (status["state"], status["exit_code"]) == ("finished", 0)
