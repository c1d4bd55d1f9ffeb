"""P5, before the disk is full: what a run writes is known beforehand, and asked for on real file systems."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from env_check.conftest import namespace
from faults.conftest import Trial

from loradock.errors import DiskFull
from loradock.files import atomic_io
from loradock.training.run_dir import disk_space

pytestmark = pytest.mark.thin(2)

MIB = 1 << 20
ASK = """
import json, sys
from pathlib import Path
from loradock.training.run_dir import disk_space
from loradock.errors import DiskFull
from loradock.files import atomic_io
name, options = sys.argv[1], json.loads(sys.argv[2])
try:
    print(json.dumps({"line": getattr(disk_space, name)(Path("/mnt/runs/one"), **options), "code": 0}))
except DiskFull as error:
    print(json.dumps({"line": error.what, "hint": error.hint, "code": error.exit_code}))
"""


def asked(function: str, *, mount: str, fill: str = ":", **options: Any) -> dict[str, Any]:
    """What one of the two answers on a fresh tmpfs with these mount options, after `fill` ran in it."""
    script = f"mount -t tmpfs -o {mount} none /mnt\ncd /mnt\n{fill}"
    command = [*namespace(script), sys.executable, "-c", ASK, function, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


RUN = {"checkpoint_bytes": 10 * MIB, "adapter_bytes": 4 * MIB, "keep": 2, "keeps_best": False, "held": []}
NEED_MIB = 3 * 10 + 4 + 8


def test_a_run_that_fits_says_what_it_will_write(trial: Trial) -> None:
    answer = asked("before_run", mount=f"size={NEED_MIB}m", **RUN)
    line = "disk: 2 checkpoints of 10.0 MiB and the adapter, 42.0 MiB to write; 42.0 MiB free"
    trial("P5", answer == {"line": line, "code": 0}, answer=answer)


def test_a_page_less_is_refused_with_the_figures_and_the_keep_that_would_fit(trial: Trial) -> None:
    answer = asked("before_run", mount=f"size={NEED_MIB * MIB - 4096}", **RUN)
    trial("P5", answer["code"] == 73, answer=answer)
    assert answer["line"] == (
        "/mnt/runs/one needs 42.0 MiB for 3 more checkpoint(s) and the adapter, and has 41.9 MiB free"
    )
    assert answer["hint"].startswith("--set checkpoints.keep=1, or free 4 KiB there, or --output")
    fits = asked("before_run", mount=f"size={NEED_MIB * MIB - 4096}", **{**RUN, "keep": 1})
    assert fits["code"] == 0


def test_where_no_number_of_checkpoints_fits_only_room_helps() -> None:
    answer = asked("before_run", mount="size=20m", **RUN)
    assert (answer["code"], answer["hint"]) == (73, "free 22.0 MiB there, or --output a directory on a larger disk")


@pytest.mark.parametrize(
    ("options", "need_mib"),
    [
        ({"keeps_best": True}, NEED_MIB + 10),
        ({"held": [10 * MIB]}, NEED_MIB - 10),
        ({"held": [10 * MIB] * 2}, NEED_MIB - 20),
        ({"held": [10 * MIB] * 5}, NEED_MIB - 20),
        ({"planned": 1}, NEED_MIB - 20),
        ({"planned": 0}, NEED_MIB - 30),
        ({"planned": 99}, NEED_MIB),
    ],
)
def test_what_is_there_the_best_one_and_a_short_run_count(options: dict[str, Any], need_mib: int) -> None:
    assert asked("before_run", mount=f"size={need_mib}m", **{**RUN, **options})["code"] == 0
    assert asked("before_run", mount=f"size={need_mib * MIB - 4096}", **{**RUN, **options})["code"] == 73


def test_a_disk_that_takes_no_more_files_is_full_too(trial: Trial) -> None:
    answer = asked("before_run", mount="size=64m,nr_inodes=40", **RUN)
    trial("P5", answer["code"] == 73 and "more files (inodes)" in answer["line"], answer=answer)
    assert re.match(r"remove \d+ files there", answer["hint"])
    assert asked("before_run", mount="size=64m,nr_inodes=60", **RUN)["code"] == 0


def test_a_disk_that_filled_up_since_refuses_the_next_checkpoint_before_a_byte_of_it(trial: Trial) -> None:
    fill = f"head -c {21 * MIB + 4096} /dev/zero > foreign"
    answer = asked("before_save", mount="size=32m", fill=fill, checkpoint_bytes=10 * MIB)
    trial("P5", answer["code"] == 73, answer=answer)
    assert answer["line"] == "the next checkpoint in /mnt/runs/one needs 11.0 MiB, and 10.9 MiB are free"
    assert answer["hint"].endswith("the same command then continues")
    assert asked("before_save", mount="size=32m", checkpoint_bytes=10 * MIB)["code"] == 0
    assert asked("before_save", mount="size=32m,nr_inodes=5", checkpoint_bytes=MIB)["code"] == 73


@pytest.mark.parametrize(("layers", "rank", "optimizer"), [(2, 4, "adamw"), (12, 4, "adamw"), (8, 64, "adamw_fused")])
def test_the_size_of_a_checkpoint_is_known_before_one_is_written(
    layers: int, rank: int, optimizer: str, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from loradock.training.checkpoint import state

    shape: Any = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": layers, "vocab_size": 200}
    base = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2))
    model = get_peft_model(base, LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    chosen = [each for each in model.parameters() if each.requires_grad]
    stepper = torch.optim.AdamW(chosen, fused=optimizer == "adamw_fused")
    for parameter in chosen:
        parameter.grad = torch.ones_like(parameter)
    stepper.step()
    content = state.of_run(model, {"optimizer": stepper}, random_states=[state.RandomState.now()])
    written = sum(atomic_io.write(tmp_path / name, each).size_bytes for name, each in state.as_files(content).items())
    assert written <= state.size_bytes(content) <= 1.05 * written + (64 << 10)
    weights = sum(each.numel() for each in chosen)
    expected = disk_space.checkpoint_bytes(weights, optimizer=optimizer, tensors=len(chosen))
    assert abs(expected - written) <= max(0.05 * written, 64 << 10), (expected, written)
    assert expected >= written


def test_a_folder_that_may_not_be_asked_does_not_end_a_run(tmp_path: Path) -> None:
    assert disk_space.before_run(tmp_path / "not" / "there", **{**RUN, "held": ()}).startswith("disk: 2 checkpoints")
    with pytest.raises(DiskFull):
        disk_space.before_save(tmp_path / "not" / "there", checkpoint_bytes=1 << 60)


REFUSED = """
import json, os
from pathlib import Path
from loradock.commands.render import put
from loradock.errors import LoradockError
from loradock.training.run_dir.paths import created
Path("p.yaml").write_text("")
found = []
for write in (
    lambda: put("kind: Pod\\n" * 900, Path("new.yaml")),
    lambda: put("kind: Pod\\n" * 900, Path("p.yaml")),
    lambda: created(Path("run"), may_exist=True),
):
    try:
        write()
    except LoradockError as error:
        found.append([error.exit_code, str(error.hint)])
print(json.dumps({"found": found, "left": sorted(str(path) for path in Path().rglob("*"))}))
"""


def test_a_refusal_on_a_full_disk_leaves_no_file_behind() -> None:
    script = "mount -t tmpfs -o size=64k none /mnt\ncd /mnt\nhead -c 64K /dev/zero > full"
    done = subprocess.run(
        [*namespace(script), sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [code for code, _ in told["found"]] == [73, 73, 73]
    assert [hint.split()[-3:] for _, hint in told["found"][:2]] == [["-o", "FILE", "elsewhere"]] * 2
    assert told["left"] == ["full", "p.yaml", "run"]
