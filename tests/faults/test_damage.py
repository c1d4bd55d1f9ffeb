"""P3 and P4: damage is never loaded; the newest good checkpoint is, and where there is none the run is refused (83)."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path

import pytest
from faults.committing import RUN_ID, committer, content
from faults.conftest import Trial

from loradock.errors import NoCheckpoint
from loradock.files import regular
from loradock.training.checkpoint.manifest import DamagedCheckpoint, open_checkpoint
from loradock.training.checkpoint.store import Checkpoints, found, newest_good

FILES = ("adapter_model.safetensors", "training_state.pt", "manifest.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three checkpoints: of the steps 10, 20 and 30."""
    commits = committer(tmp_path / "checkpoints", keep=3)
    for step in (10, 20, 30):
        commits.commit(step, files=content(step), progress={"step": step, "loss": 0.5})
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_noticed(folder: Path, name: str, trial: Trial, pytestconfig: pytest.Config) -> None:
    file = folder / "checkpoint-30" / name
    sound, draw = file.read_bytes(), random.Random(name)
    everywhere = range(8 * len(sound))
    for bit in draw.sample(everywhere, k=100 if pytestconfig.getoption("--full") else 10):
        spoilt = bytearray(sound)
        spoilt[bit // 8] ^= 1 << bit % 8
        file.write_bytes(spoilt)
        is_seen = found(folder)[0].problem is not None
        with pytest.raises(DamagedCheckpoint):
            open_checkpoint(folder / "checkpoint-30")
        good, _ = newest_good(folder, run_id=RUN_ID, is_read_only=True)
        trial("P3", is_seen and good is not None and good.step == 20, file=name, bit=bit)
    file.write_bytes(sound)
    assert found(folder)[0].problem is None


def test_any_changed_byte_of_the_manifest_is_noticed(folder: Path) -> None:
    file = folder / "checkpoint-30" / "manifest.json"
    sound = file.read_bytes()
    for index in range(len(sound)):
        file.write_bytes(sound[:index] + (b"0" if sound[index : index + 1] != b"0" else b" ") + sound[index + 1 :])
        assert found(folder, is_hashed=False)[0].problem
    for same_content in (json.dumps(json.loads(sound)).encode(), sound + b"\n", sound[:-1]):
        file.write_bytes(same_content)
        assert found(folder, is_hashed=False)[0].problem


def test_what_is_loaded_is_what_was_verified(folder: Path) -> None:
    checkpoint = open_checkpoint(folder / "checkpoint-30")
    assert checkpoint.read("training_state.pt") == content(30)["training_state.pt"]
    (folder / "checkpoint-30" / "training_state.pt").write_bytes(content(29)["training_state.pt"])
    with pytest.raises(DamagedCheckpoint, match=r"training_state\.pt was changed"):
        checkpoint.read("training_state.pt")


def test_a_file_of_any_size_is_read_back(tmp_path: Path) -> None:
    large = {"training_state.pt": bytes(regular.MOST_BYTES + 1)}
    committer(tmp_path, keep=1).commit(10, files=content(10) | large, progress={"step": 10, "loss": 0.5})
    assert open_checkpoint(tmp_path / "checkpoint-10").read("training_state.pt") == large["training_state.pt"]


def damage(file: Path, how: str) -> None:
    if how == "deleted":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: {"emptied": 0, "cut": file.stat().st_size // 2}[how]])


@pytest.mark.parametrize("how", ["deleted", "emptied", "cut"])
@pytest.mark.parametrize("name", FILES)
def test_the_next_good_one_is_taken_and_where_there_is_none_the_run_is_refused(
    folder: Path, name: str, how: str, trial: Trial
) -> None:
    damage(folder / "checkpoint-30" / name, how)
    good, lines = newest_good(folder, run_id=RUN_ID)
    [line] = lines
    is_told = line.startswith("checkpoint-30: ") and line.endswith("set aside as checkpoint-30.set-aside-1")
    trial("P4", good is not None and good.step == 20 and is_told, file=name, how=how, damaged=1)
    assert not (folder / "checkpoint-30").exists()

    damage(folder / "checkpoint-20" / name, how)
    good, lines = newest_good(folder, run_id=RUN_ID)
    trial("P4", good is not None and good.step == 10 and len(lines) == 1, file=name, how=how, damaged=2)

    damage(folder / "checkpoint-10" / name, how)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(NoCheckpoint) as refused:
        newest_good(folder, run_id=RUN_ID)
    is_unmoved = sorted(path.name for path in folder.iterdir()) == before
    is_named = [problem.file for problem in refused.value.problems] == [str(folder / "checkpoint-10")]
    trial("P4", refused.value.exit_code == 83 and is_unmoved and is_named, file=name, how=how, damaged=3)


def test_several_damaged_ones_are_all_named_in_the_refusal(folder: Path) -> None:
    for step in (10, 20, 30):
        damage(folder / f"checkpoint-{step}" / "training_state.pt", "cut")
    with pytest.raises(NoCheckpoint) as refused:
        newest_good(folder, run_id=RUN_ID)
    assert [Path(problem.file or "").name for problem in refused.value.problems] == [
        "checkpoint-30", "checkpoint-20", "checkpoint-10",
    ]  # fmt: skip
    assert "4500 bytes instead of 9000" in str(refused.value)


def test_no_checkpoint_at_all_is_no_damage(tmp_path: Path) -> None:
    assert newest_good(tmp_path / "checkpoints", run_id=RUN_ID) == (None, ())
    assert found(tmp_path / "checkpoints") == []


def test_only_ones_that_were_set_aside_are_no_fresh_start(folder: Path) -> None:
    for step in (10, 20):
        shutil.rmtree(folder / f"checkpoint-{step}")
    (folder / "checkpoint-30").rename(folder / "checkpoint-30.set-aside-1")
    good, lines = newest_good(folder, run_id=RUN_ID)
    assert good is not None
    assert good.path == folder / "checkpoint-30"
    assert lines == ("checkpoint-30.set-aside-1: good, put back as checkpoint-30",)
    damage(folder / "checkpoint-30" / "training_state.pt", "cut")
    (folder / "checkpoint-30").rename(folder / "checkpoint-30.set-aside-1")
    with pytest.raises(NoCheckpoint):
        newest_good(folder, run_id=RUN_ID)


def test_a_checkpoint_of_another_run_is_refused_by_its_name_and_stays(folder: Path) -> None:
    with pytest.raises(NoCheckpoint, match=f"belongs to another run: {RUN_ID}, not mine"):
        newest_good(folder, run_id="mine")
    good, _ = newest_good(folder, run_id=None)
    assert good is not None
    assert good.step == 30


def test_one_without_a_manifest_is_from_before_this_version(folder: Path) -> None:
    damage(folder / "checkpoint-30" / "manifest.json", "deleted")
    assert [each.problem for each in found(folder)] == ["it has no manifest", None, None]


def test_a_copy_under_another_step_is_noticed(folder: Path) -> None:
    shutil.copytree(folder / "checkpoint-30", folder / "checkpoint-40")
    assert found(folder)[0].problem == "its manifest is of step 30"


def test_a_manifest_of_a_later_format_is_not_read_as_ours(folder: Path) -> None:
    file = folder / "checkpoint-30" / "manifest.json"
    content = {**json.loads(file.read_text()), "format": 2}
    del content["sha256"]
    canonical = json.dumps(content, sort_keys=True, indent=1) + "\n"
    content["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    file.write_text(json.dumps(content, sort_keys=True, indent=1) + "\n")
    assert found(folder)[0].problem == "manifest.json is of format 2; this loradock knows 1"


def test_what_was_put_in_beside_and_what_is_no_plain_file_is_noticed(folder: Path) -> None:
    newest = folder / "checkpoint-30"
    (newest / "notes.txt").write_text("mine")
    assert found(folder)[0].problem == "notes.txt was not part of it"
    (newest / "notes.txt").unlink()
    (newest / "training_state.pt").rename(folder / "elsewhere")
    (newest / "training_state.pt").symlink_to(folder / "elsewhere")
    assert found(folder)[0].problem == "training_state.pt is not a regular file"
    shutil.rmtree(newest)
    newest.write_text("")
    assert found(folder)[0].problem == "it is not a folder"


def test_what_json_does_not_know_is_never_committed(folder: Path) -> None:
    commits = Checkpoints(folder, run_id=RUN_ID, fingerprint={}, keep=3)
    with pytest.raises(ValueError, match="not JSON compliant"):
        commits.commit(40, files=content(40), progress={"best_loss": float("nan")})
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]
