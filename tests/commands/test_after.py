"""`after.merge`: a finished run is merged, by the same command too where that was missed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from proven import unchecked
from transformers import AutoModelForCausalLM

from loradock.cli import cli
from loradock.errors import LoradockError
from loradock.use.inference.opener import open_model

QUESTION = {
    "instruction": "Is salt white?\n\nAnswer format: true/false",
    "input": "",
    "output": "the correct answer is true",
}
IDS = torch.tensor([[5, 9, 11, 30]])


def train(folder: Path, model: Path, rows: Path, *settings: str) -> str:
    words = ["train", "--model", str(model), "--data", str(rows), "--output", str(folder / "run")]
    words.append(unchecked("what comes after a training is tried"))
    sets = ("train.max_steps=2", "lora.rank=4", f"data.cache={folder / 'cache'}", *settings)
    found = CliRunner().invoke(cli, [*words, *(word for each in sets for word in ("--set", each))])
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize("onto", ["auto", "original"])
def test_a_finished_run_is_merged_and_what_was_missed_is_made_by_the_same_command(
    tmp_path: Path, llama: Path, rows: Path, onto: str
) -> None:
    said = train(tmp_path, llama, rows, f"after.merge={onto}")
    merged = tmp_path / "run" / "merged"
    assert f"merged model: {merged}" in said
    weights = (merged / "model.safetensors").read_bytes()
    shutil.rmtree(merged)
    assert "is finished" in train(tmp_path, llama, rows, f"after.merge={onto}")
    assert (merged / "model.safetensors").read_bytes() == weights
    if onto == "auto":
        run, plain = open_model(tmp_path / "run"), AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
        with run.computing():
            torch.testing.assert_close(plain(IDS).logits, run.model(IDS).logits, atol=2e-3, rtol=0)


def test_a_finished_run_answers_its_tasks_and_says_so_in_record_and_model_card(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    file = tmp_path / "boolq.json"
    file.write_text(json.dumps([QUESTION | {"answer": answer} for answer in ("true", "false", "true", "true")]))
    said = train(tmp_path, llama, rows, f"evaluation.tasks=[boolq={file}]")
    assert "boolq: " in said
    run = tmp_path / "run"
    (found,) = json.loads((run / "run.json").read_text())["tasks"]
    assert (found["rows"], found["majority"]) == (4, 0.75)
    assert found["adapter"] - found["base"] == pytest.approx(found["difference"])
    assert "| boolq | 4 |" in (run / "adapter" / "README.md").read_text()
    assert "evaluating" not in train(tmp_path, llama, rows, f"evaluation.tasks=[boolq={file}]")


@pytest.mark.parametrize(
    ("asked", "code", "what"),
    [("boolq=gone.json", 66, "gone.json of task boolq does not exist"), ("boolk=x.json", 78, "evaluation.tasks: ")],
)
def test_a_task_that_cannot_be_asked_is_refused_before_anything_is_trained(
    tmp_path: Path, llama: Path, rows: Path, asked: str, code: int, what: str
) -> None:
    words = ["train", "--model", str(llama), "--data", str(rows), "--output", str(tmp_path / "run")]
    with pytest.raises(LoradockError) as error:
        CliRunner().invoke(
            cli, [*words, "--set", f"evaluation.tasks=[{asked}]"], catch_exceptions=False, standalone_mode=False
        )
    assert error.value.exit_code == code
    assert what in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_run_without_the_key_is_not_merged(tmp_path: Path, llama: Path, rows: Path) -> None:
    train(tmp_path, llama, rows)
    assert not (tmp_path / "run" / "merged").exists()
