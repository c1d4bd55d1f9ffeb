"""`loradock checkpoint`: what it says of a run's checkpoints, and that it changes none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.forking import Forking
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tiny import copy_tree
from transformers import AutoModelForCausalLM, AutoTokenizer

from loradock.config.load import load
from loradock.data.templates import named
from loradock.training.checkpoint.state import RandomState, as_files, of_run
from loradock.training.checkpoint.store import Checkpoints

RUN_ID = "0123456789abcdef"
ADAPTER = "adapter_model.safetensors"


Checkpoint = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def checkpoint(forking: Forking, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """`loradock checkpoint` with these arguments, forked."""
    place = tmp_path_factory.mktemp("place")

    def ended(*arguments: object) -> subprocess.CompletedProcess[str]:
        return forking.run(place, "checkpoint", *map(str, arguments))

    return ended


@pytest.fixture(scope="module")
def model(llama: Path) -> Any:
    """The tiny Llama with a LoRA whose weights are no longer those of its beginning."""
    torch.manual_seed(0)
    settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(llama), settings)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data.normal_()
    return adapted


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, model: Any, llama: Path, rows: Path) -> Path:
    """A run directory with the checkpoints 5, 10 and 15, as a run leaves it that continues."""
    directory = tmp_path_factory.mktemp("made") / "run"
    directory.mkdir()
    loaded = load(
        None, preset=None, overrides=["data.template=chatml"], shortcuts={"--model": str(llama), "--data": [str(rows)]}
    )
    base = {"name": str(llama), "revision": None, "path": str(llama)}
    record = {"run_id": RUN_ID, "status": "running", "config": loaded.config.model_dump(mode="json"), "base": base}
    (directory / "run.json").write_text(json.dumps(record))
    commits = Checkpoints(directory / "checkpoints", run_id=RUN_ID, fingerprint={"train.seed": "0"}, keep=3)
    files = as_files(of_run(model, {"optimizer": None}, random_states=[RandomState.now()]))
    for step in (5, 10, 15):
        commits.commit(step, files=files, progress={"step": step})
    return directory


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return copy_tree(made, tmp_path / "run")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_list_names_step_size_time_and_where_the_run_continues(checkpoint: Checkpoint, run: Path) -> None:
    ended = checkpoint("list", run)
    assert ended.returncode == 0
    head, *lines = ended.stdout.splitlines()
    assert head.split() == ["step", "size", "committed", "(UTC)", "state"]
    assert [line.split()[0] for line in lines] == ["5", "10", "15"]
    assert "KiB" in lines[0]
    assert [line.endswith("ok, the run continues from it") for line in lines] == [False, False, True]


def test_list_sees_a_file_that_is_cut_off_and_what_was_set_aside(checkpoint: Checkpoint, run: Path) -> None:
    file = run / "checkpoints" / "checkpoint-15" / "training_state.pt"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:100])
    (run / "checkpoints" / "checkpoint-5").rename(run / "checkpoints" / "checkpoint-5.set-aside-1")
    content = json.loads(checkpoint("list", run, "--json").stdout)
    newest, older = content["checkpoints"]
    assert newest["problem"] == f"training_state.pt has 100 bytes instead of {size}"
    assert (newest["is_newest"], newest["is_continued_from"]) == (True, False)
    assert (older["step"], older["problem"], older["is_continued_from"]) == (10, None, True)
    assert content["set_aside"] == ["checkpoint-5.set-aside-1"]
    assert "set aside: checkpoint-5.set-aside-1" in checkpoint("list", run).stdout


def test_verify_says_83_for_a_flipped_bit_in_the_newest_and_names_what_to_do(checkpoint: Checkpoint, run: Path) -> None:
    assert checkpoint("verify", run).returncode == 0
    before = tree(run)
    flip(run / "checkpoints" / "checkpoint-15" / ADAPTER)
    ended = checkpoint("verify", run, "--json")
    assert ended.returncode == 83
    assert json.loads(ended.stdout)["checkpoints"][0]["problem"] == f"{ADAPTER} was changed"
    assert f"checkpoint-15: {ADAPTER} was changed" in ended.stderr
    assert f"hint: loradock train --resume --output {run} sets it aside and continues from step 10" in ended.stderr
    assert tree(run).keys() == before.keys()


def test_verify_of_an_older_damaged_one_tells_it_and_ends_well(checkpoint: Checkpoint, run: Path) -> None:
    flip(run / "checkpoints" / "checkpoint-5" / ADAPTER)
    ended = checkpoint("verify", run)
    assert ended.returncode == 0
    assert f"{ADAPTER} was changed" in ended.stdout


def test_verify_refuses_where_none_is_good_none_is_there_or_they_are_of_another_run(
    checkpoint: Checkpoint, run: Path, tmp_path: Path
) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "run_id": "other"}))
    foreign = checkpoint("verify", run)
    assert foreign.returncode == 83
    assert f"it belongs to another run: {RUN_ID}" in foreign.stderr
    assert "no checkpoint is good" in foreign.stderr
    (run / "checkpoints").rename(tmp_path / "away")
    assert checkpoint("verify", run).returncode == 83
    assert checkpoint("list", run).stdout == f"{run} has no checkpoint yet\n"
    (run / "run.json").unlink()
    nothing = checkpoint("list", run)
    assert (nothing.returncode, nothing.stderr.splitlines()[0]) == (66, f"error: there is no run in {run}")


def test_export_writes_an_adapter_that_plain_peft_loads_with_its_tokenizer_and_template(
    checkpoint: Checkpoint, run: Path, tmp_path: Path, model: Any, llama: Path
) -> None:
    output, before = tmp_path / "new" / "adapter", tree(run)
    output.mkdir(parents=True)  # an empty folder is taken
    ended = checkpoint("export", run, "--output", output)
    assert (ended.returncode, ended.stderr) == (0, f"{output}: the adapter of step 15, verified\n")
    settings = json.loads((output / "adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["revision"]) == (str(llama.resolve()), None)
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), output)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model.eval()(ids).logits)
    assert AutoTokenizer.from_pretrained(output).chat_template == named("chatml").text
    assert {path.suffix for path in output.iterdir()} <= {".json", ".jinja", ".safetensors"}
    assert tree(run) == before
    assert [path.name for path in output.parent.iterdir()] == ["adapter"]


def test_export_takes_the_newest_good_one_or_the_step_that_is_asked_for(
    checkpoint: Checkpoint, run: Path, tmp_path: Path
) -> None:
    flip(run / "checkpoints" / "checkpoint-15" / ADAPTER)
    ended = checkpoint("export", run, "--output", tmp_path / "newest")
    assert ended.stderr.splitlines() == [
        f"warning: checkpoint-15: {ADAPTER} was changed",
        f"{tmp_path / 'newest'}: the adapter of step 10, verified",
    ]
    assert load_file(tmp_path / "newest" / ADAPTER).keys()
    asked = checkpoint("export", run, "--output", tmp_path / "fifteen", "--step", 15)
    assert asked.returncode == 83
    assert "error: checkpoint-15 is not good" in asked.stderr
    missing = checkpoint("export", run, "--output", tmp_path / "seven", "--step", 7)
    assert (missing.returncode, "there is no checkpoint-7" in missing.stderr) == (83, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", "run"]


def test_export_refuses_an_output_that_is_there_and_a_base_that_is_gone(
    checkpoint: Checkpoint, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "somebody's").touch()
    assert checkpoint("export", run, "--output", tmp_path / "there").returncode == 64
    record = json.loads((run / "run.json").read_text())
    record["base"] = {"name": "someone/model", "revision": "abc", "path": "/gone"}
    (run / "run.json").write_text(json.dumps(record))
    gone = checkpoint("export", run, "--output", tmp_path / "new")
    assert gone.returncode == 66
    assert "hint: hf download someone/model --revision abc" in gone.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_export_refuses_an_adapter_whose_base_was_changed(
    checkpoint: Checkpoint, run: Path, tmp_path: Path, init: str
) -> None:
    record = json.loads((run / "run.json").read_text())
    record["config"]["lora"]["init"] = init
    (run / "run.json").write_text(json.dumps(record))
    ended = checkpoint("export", run, "--output", tmp_path / "new")
    assert ended.returncode == 78
    assert f"hint: loradock train --resume --output {run} ends the run, whose adapter/ is right" in ended.stderr


def test_list_needs_no_training_library() -> None:
    code = "import sys, loradock.commands.checkpoint; sys.exit(' '.join({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""
