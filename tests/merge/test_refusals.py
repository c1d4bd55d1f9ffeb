"""What cannot be merged is refused with one clear error, and nothing appears."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from env_check.conftest import namespace
from merge.made import make_adapter, merged, write_lineage
from safetensors.torch import load_file, save_file
from tiny import make_llama
from whole_runs import train

from loradock.errors import DiskFull, InputMissing, Locked, ModelError, UsageError
from loradock.files import lock
from loradock.machine.answers import Space
from loradock.use.merge.job import Asked, prepared
from loradock.use.merge.merge import merge
from loradock.use.merge.run import run

pytestmark = pytest.mark.thin(2)

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("base"))


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    return make_adapter(tmp_path / "adapter", base=base)


def refused(adapter: Path, output: Path, error: type[Exception], match: str, **asked: Any) -> None:
    """The merge is refused, and neither the output nor anything half written is there."""
    before = sorted(path.name for path in output.parent.iterdir())
    with pytest.raises(error, match=match):
        merged(adapter, output, **asked)
    assert sorted(path.name for path in output.parent.iterdir()) == before


def test_an_adapter_of_another_base_is_refused(tmp_path: Path, adapter: Path) -> None:
    other = make_llama(tmp_path / "other", hidden_size=128)
    refused(adapter, tmp_path / "out", ModelError, "of another shape", base=str(other))
    other = make_llama(tmp_path / "deep", num_hidden_layers=3)
    refused(adapter, tmp_path / "out", ModelError, "are missing", base=str(other))
    other = make_llama(tmp_path / "flat", num_hidden_layers=1)
    refused(adapter, tmp_path / "out", ModelError, "belong to nothing in", base=str(other))


def test_a_base_without_one_of_its_tensors_is_refused(tmp_path: Path, base: Path, adapter: Path) -> None:
    own = shutil.copytree(base, tmp_path / "base")
    tensors = load_file(own / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, own / "model.safetensors", metadata={"format": "pt"})
    refused(adapter, tmp_path / "out", ModelError, "does not hold the whole model", base=str(own))


def test_a_base_whose_weights_are_not_the_recorded_ones_is_refused(tmp_path: Path, adapter: Path) -> None:
    with prepared(adapter, Asked()) as job, pytest.raises(ModelError, match="not the base that the adapter") as caught:
        merge(
            job.plan,
            tmp_path / "out",
            digests={"model.safetensors": "0" * 64},
            stop_ids=(),
            progress=lambda *_: None,
            proof=lambda *_: {},
        )
    assert caught.value.exit_code == 78
    assert caught.value.problems[0].file == "model.safetensors"
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_a_run_or_adapter_whose_base_became_another_is_not_merged(tmp_path: Path, llama: Path, rows: Path) -> None:
    own = shutil.copytree(llama, tmp_path / "base")
    result = train(tmp_path / "run", "train.max_steps=1", "lora.rank=4", "train.global_batch=8", model=own, data=rows)
    alone = shutil.copytree(result.adapter, tmp_path / "alone")
    make_llama(own, seed=5)
    for given in (tmp_path / "run", alone):
        refused(given, tmp_path / "out", ModelError, "base is not the base that the adapter was trained on")


def test_a_truncated_adapter_is_refused(tmp_path: Path, adapter: Path) -> None:
    whole = (adapter / WEIGHTS).read_bytes()
    (adapter / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    refused(adapter, tmp_path / "out", ModelError, "truncated")
    (adapter / WEIGHTS).unlink()
    refused(adapter, tmp_path / "out", InputMissing, "does not exist")


def test_a_tensor_that_belongs_to_nothing_is_named(tmp_path: Path, adapter: Path) -> None:
    tensors = load_file(adapter / WEIGHTS)
    save_file(tensors | {"base_model.model.model.extra.weight": torch.zeros(3)}, adapter / WEIGHTS)
    refused(adapter, tmp_path / "out", ModelError, r"1 tensors of .* first base_model\.model\.model\.extra\.weight")
    name = next(name for name in tensors if "lora_B" in name)
    save_file({key: each for key, each in tensors.items() if key != name}, adapter / WEIGHTS)
    refused(adapter, tmp_path / "out", ModelError, f"1 tensors are missing, first {name}")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"init_lora_weights": "pissa"}, "began with pissa"),
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"lora_bias": True}, "biases of its own"),
    ],
)
def test_another_kind_of_adapter_is_refused(tmp_path: Path, adapter: Path, settings: dict[str, Any], what: str) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    refused(adapter, tmp_path / "out", ModelError, what)


def test_an_adapter_of_nobody_has_to_say_what_it_was_trained_on(tmp_path: Path, adapter: Path) -> None:
    (adapter / "training.json").unlink()
    refused(adapter, tmp_path / "out", ModelError, "nobody recorded")
    merged(adapter, tmp_path / "out", quantization="none")
    assert json.loads((tmp_path / "out" / "merge.json").read_text())["onto"] == "original"


def test_int8_has_no_weights_of_training(tmp_path: Path, base: Path, adapter: Path) -> None:
    write_lineage(adapter, base=base, quantization="int8")
    refused(adapter, tmp_path / "out", UsageError, "quantises activations too", onto="trained")
    with prepared(adapter, Asked()) as job:
        assert (job.plan.onto, "activations" in job.why) == ("original", True)


def test_a_whole_model_and_an_output_that_exists_are_refused(tmp_path: Path, base: Path, adapter: Path) -> None:
    refused(base, tmp_path / "out", UsageError, "has no adapter")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "somebody's").touch()
    refused(adapter, tmp_path / "out", UsageError, "already exists")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    refused(adapter, tmp_path / "link", UsageError, "already exists")


def test_an_empty_folder_is_taken_for_the_output_and_a_mount_is_told_as_one(tmp_path: Path, adapter: Path) -> None:
    (tmp_path / "out").mkdir()
    merged(adapter, tmp_path / "out")
    assert (tmp_path / "out" / "merge.json").is_file()
    script = "from pathlib import Path; from loradock.files.staged import refuse_existing as r; r(Path('/mnt'))"
    command = [*namespace("mount -t tmpfs none /mnt"), sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "error: /mnt is a mount point" in done.stderr
    assert "hint: name another in it: /mnt/new" in done.stderr


def test_two_that_write_the_same_output_do_not_meet(tmp_path: Path, adapter: Path) -> None:
    with lock.writing(tmp_path / "out"):
        refused(adapter, tmp_path / "out", Locked, "another process")
    merged(adapter, tmp_path / "out")


def test_a_number_that_float16_does_not_hold_is_named(tmp_path: Path, base: Path) -> None:
    own = shutil.copytree(base, tmp_path / "base")
    tensors = load_file(own / "model.safetensors")
    tensors["model.norm.weight"][3] = 1e6
    save_file(tensors, own / "model.safetensors", metadata={"format": "pt"})
    adapter = make_adapter(tmp_path / "adapter", base=own)
    refused(adapter, tmp_path / "out", ModelError, r"model\.norm\.weight has numbers that float16", dtype="f16")


def test_a_disk_that_is_too_small_is_known_beforehand(
    tmp_path: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loradock.machine.folders import Folders

    monkeypatch.setattr(Folders, "space", lambda *_: Space(device=1, free_bytes=1 << 20, total_bytes=1, free_inodes=9))
    with pytest.raises(DiskFull, match="needs 32") as caught:
        merged(adapter, tmp_path / "out")
    assert caught.value.exit_code == 73
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


FILLED = """
import json, sys
from pathlib import Path
from merge.made import merged
from loradock.errors import LoradockError
from loradock.use.merge import merge as merging
merging.before_output = lambda *_: None
code = 0
try:
    merged(Path(sys.argv[1]), Path("/mnt/out"))
except LoradockError as error:
    code = error.exit_code
print(json.dumps([code, sorted(path.name for path in Path("/mnt").iterdir())]))
"""


@pytest.mark.thin(4)
@pytest.mark.parametrize("kib", [8, *(pytest.param(kib, marks=pytest.mark.full) for kib in (100, 400))])
def test_a_disk_that_fills_up_meanwhile_leaves_nothing(adapter: Path, kib: int) -> None:
    mount = f"mount -t tmpfs -o size={kib}k none /mnt"
    command = [*namespace(mount), sys.executable, "-c", FILLED, str(adapter)]
    tests = Path(__file__).parents[1]
    paths = {"PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **paths})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [73, []]


def test_an_adapter_that_changes_nothing_after_rounding_is_counted(tmp_path: Path, base: Path) -> None:
    faint = make_adapter(tmp_path / "faint", base=base, spread=1e-4)
    assert len(merged(faint, tmp_path / "half", dtype="bf16").faint) == 6
    assert not merged(faint, tmp_path / "whole").faint


@pytest.mark.thin(4)
@pytest.mark.usefixtures("forked_proof")
@pytest.mark.parametrize("init", ["pissa", pytest.param("olora", marks=pytest.mark.full)])
def test_a_run_that_changed_its_base_is_merged_onto_the_published_one(
    tmp_path: Path, llama: Path, rows: Path, init: str
) -> None:
    from merge.made import divergence

    settings = (f"lora.init={init}", "model.quantization=none", "lora.rank=4", "lora.alpha=8")
    result = train(tmp_path / "run", *settings, "train.max_steps=3", "train.global_batch=8", model=llama, data=rows)
    with prepared(tmp_path / "run", Asked()) as job:
        run(job, tmp_path / "out", is_full=True)
    assert divergence(result.adapter, tmp_path / "out", quantization="none") <= 1e-8


def test_a_base_that_is_in_another_4_bit_is_refused(tmp_path: Path, base: Path, adapter: Path) -> None:
    own = shutil.copytree(base, tmp_path / "quantised")
    settings = json.loads((own / "config.json").read_text())
    quantised = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}
    (own / "config.json").write_text(json.dumps(settings | {"quantization_config": quantised}))
    write_lineage(adapter, base=own)
    refused(adapter, tmp_path / "out", ModelError, r"is already quantised \(bitsandbytes, fp4\)")
    merged(adapter, tmp_path / "out", base=str(base))


def test_a_model_of_pickles_is_refused(tmp_path: Path, base: Path, adapter: Path) -> None:
    own = shutil.copytree(base, tmp_path / "pickled")
    torch.save(load_file(own / "model.safetensors"), own / "pytorch_model.bin")
    (own / "model.safetensors").unlink()
    write_lineage(adapter, base=own)
    refused(adapter, tmp_path / "out", ModelError, "is not a safetensors file")
