"""`loradock merge` as it is typed: of a run and of its checkpoint, killed and repeated, and within its memory."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from faults.forking import Forking
from merge.made import make_adapter
from safetensors.torch import load_file
from tiny import make_llama
from whole_runs import train

from loradock.cli import cli
from loradock.errors import LoradockError

pytestmark = pytest.mark.thin(2)

KILLS = 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> Path:
    """A finished NF4 run of 4 steps with a checkpoint at step 2."""
    directory = tmp_path_factory.mktemp("runs") / "one"
    asked = ("train.max_steps=4", "train.global_batch=8", "checkpoints.every=2", "checkpoints.keep=3", "lora.rank=4")
    asked += ("data.validation=0.25", "train.learning_rate=0.01")
    train(directory, *asked, model=llama, data=rows)
    return directory


def typed(*arguments: str | Path) -> Result:
    """The command in this process."""
    result = CliRunner().invoke(cli, ["merge", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, (LoradockError, SystemExit)):
        raise result.exception
    return result


def contents(folder: Path) -> dict[str, bytes]:
    """Every file with its bytes."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_run_is_merged_and_proven_and_the_same_again_to_the_byte(
    tmp_path: Path, run: Path, request: pytest.FixtureRequest
) -> None:
    first = typed(run, tmp_path / "one", "--verify", "full", "--json")
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    assert found["verified"]["kl_mean"] <= 1e-8
    assert found["onto"] == "trained"
    assert "onto the trained weights" in first.stderr
    record = json.loads((tmp_path / "one" / "merge.json").read_text())
    assert record["run_id"] == json.loads((run / "run.json").read_text())["run_id"]
    request.getfixturevalue("forked_proof")  # the first is started cold
    assert typed(run, tmp_path / "two", "--verify", "full").exit_code == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert str(tmp_path) not in (tmp_path / "one" / "merge.json").read_text()


def test_both_merges_are_compared_on_held_out_rows(tmp_path: Path, run: Path) -> None:
    result = typed(run, tmp_path / "out", "--compare", "--dry-run", "--json")
    found = json.loads(result.stdout)["compared"]
    assert found["rows"] == 12
    assert abs(found["trained"] - found["adapter"]) < 1e-5
    assert abs(found["original"] - found["adapter"]) > 1e-4
    assert "held-out rows, merged onto: trained" in result.stderr
    alone = typed(Path(shutil.copytree(run / "adapter", tmp_path / "alone")), tmp_path / "out", "--compare")
    assert isinstance(alone.exception, LoradockError)
    assert alone.exception.exit_code == 64


def test_a_checkpoint_is_merged_too(tmp_path: Path, run: Path) -> None:
    assert typed(run, tmp_path / "two", "--checkpoint", "2").exit_code == 0
    assert typed(run, tmp_path / "four", "--checkpoint", "4").exit_code == 0
    assert typed(run, tmp_path / "end").exit_code == 0
    step_2, step_4, end = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "four", "end"))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(step_4[name], end[name])
    assert not torch.equal(step_2[name], end[name])
    missing = typed(run, tmp_path / "none", "--checkpoint", "3")
    assert isinstance(missing.exception, LoradockError)
    assert missing.exception.exit_code == 83
    assert not (tmp_path / "none").exists()


def test_a_dry_run_says_what_it_takes_and_writes_nothing(tmp_path: Path, run: Path) -> None:
    result = typed(run, tmp_path / "out", "--dry-run", "--json")
    found = json.loads(result.stdout)
    said = typed(run, tmp_path / "out", "--dry-run")
    assert said.stdout.startswith(
        f"dry run, nothing is written: {tmp_path / 'out'} would need {found['tensors']} tensors, "
    )
    assert re.search(
        r"^tensors: [1-9]\d* to merge, 0 to replace, \d+ to dequantise, \d+ to copy$", said.stderr, re.MULTILINE
    )
    assert not list(tmp_path.iterdir())
    assert typed(run, tmp_path / "out").exit_code == 0
    written = sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    assert written <= found["disk_bytes"] <= written + (40 << 20)


@pytest.mark.thin(4)
def test_20_kills_leave_no_half_model_and_the_same_command_finishes(
    tmp_path: Path, llama: Path, forking: Forking
) -> None:
    base = make_llama(tmp_path / "base", hidden_size=256, intermediate_size=512, num_hidden_layers=6)
    adapter = make_adapter(tmp_path / "adapter", base=base)
    whole = forking.start(tmp_path, "merge", str(adapter), str(tmp_path / "whole"))
    assert whole.finish() == 0, whole.text()
    lasted = time.monotonic() - whole.began
    wanted, draw, seen = contents(tmp_path / "whole"), random.Random(0), set[str]()
    for number in range(KILLS):
        output = tmp_path / "out"
        command = forking.start(tmp_path, "merge", str(adapter), str(output))
        time.sleep(lasted * draw.uniform(0.2, 1.0) if number else 0)
        command.send(signal.SIGKILL)
        command.finish()
        if output.exists():
            assert contents(output) == wanted
            output.rename(tmp_path / f"done-{number}")
            seen.add("whole")
        else:
            seen.add("half" if (tmp_path / ".out.staged").exists() else "nothing")
    assert "half" in seen, seen
    last = forking.start(tmp_path, "merge", str(adapter), str(tmp_path / "out"))
    assert last.finish() == 0, last.text()
    assert contents(tmp_path / "out") == wanted
    assert not list(tmp_path.glob(".out*"))


PEAK = """
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) << 10
import atexit
from pathlib import Path
import torch, transformers, peft, bitsandbytes, loradock.use.merge.run
open("/proc/self/clear_refs", "w").write("5")
before = peak()
atexit.register(lambda: Path("peak").write_text(str(peak() - before)))
"""


@pytest.mark.thin(4)
def test_memory_is_bounded_by_the_largest_target_and_not_by_the_model(tmp_path: Path, forking: Forking) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 16384, "num_hidden_layers": 8, "max_position_embeddings": 64}
    base = make_llama(tmp_path / "base", **shape)
    assert (base / "model.safetensors").stat().st_size > 750 << 20
    adapter = make_adapter(tmp_path / "adapter", base=base)
    command = forking.start(tmp_path, "merge", str(adapter), str(tmp_path / "out"), code=PEAK)
    assert command.finish() == 0, command.text()
    peak = int((tmp_path / "peak").read_text())
    assert peak <= (1 << 29) + 16 * 512 * 16384, peak
