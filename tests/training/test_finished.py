"""A finished run whose adapter is not what was exported: the same command exports it again, with the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faults.forking import Forking
from proven import unchecked

WEIGHTS = "adapter_model.safetensors"
SHORT = ("--max-steps", "3", "--set", "train.global_batch=4", "--set", "data.max_length=64", "--set", "lora.rank=2")


def flip(adapter: Path) -> None:
    content = bytearray((adapter / WEIGHTS).read_bytes())
    content[-9] ^= 1
    (adapter / WEIGHTS).write_bytes(content)


def clear(adapter: Path) -> None:
    (adapter / WEIGHTS).write_bytes(bytes((adapter / WEIGHTS).stat().st_size))


def remove(adapter: Path) -> None:
    (adapter / WEIGHTS).unlink()


def edit(adapter: Path) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(file.read_text().replace('"r": 2', '"r": 4'))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("finished")


def train(forking: Forking, place: Path, llama: Path, rows: Path) -> str:
    words = ("--model", str(llama), "--data", str(rows), "--output", "run", unchecked("the adapter is looked at"))
    command = forking.start(place, "train", *words, *SHORT)
    assert command.finish() == 0, command.text()
    return command.text()


@pytest.mark.parametrize("damage", [flip, clear, remove, edit])
def test_a_damaged_adapter_is_exported_again(
    forking: Forking, place: Path, llama: Path, rows: Path, damage: Callable[[Path], None]
) -> None:
    train(forking, place, llama, rows)
    adapter = place / "run" / "adapter"
    whole = {file.name: file.read_bytes() for file in adapter.iterdir() if file.suffix in (".safetensors", ".json")}
    assert "exported again" not in train(forking, place, llama, rows)
    damage(adapter)
    said = train(forking, place, llama, rows)
    assert "exported again from the last checkpoint" in said
    assert {name: (adapter / name).read_bytes() for name in whole} == whole
    assert "is finished" in train(forking, place, llama, rows)


def test_a_card_that_was_edited_is_left(forking: Forking, place: Path, llama: Path, rows: Path) -> None:
    train(forking, place, llama, rows)
    card = place / "run" / "adapter" / "README.md"
    card.write_text("mine")
    assert "is finished" in train(forking, place, llama, rows)
    assert card.read_text() == "mine"


@pytest.mark.parametrize("name", [".adapter.staged", ".adapter.replaced"])
def test_a_file_in_the_place_of_what_is_staged_does_not_end_the_export(
    forking: Forking, place: Path, llama: Path, rows: Path, name: str
) -> None:
    train(forking, place, llama, rows)
    remove(place / "run" / "adapter")
    (place / "run" / name).write_text("in the way")
    (place / "run" / "checkpoints" / ".trash-0").mkdir()
    assert "exported again from the last checkpoint" in train(forking, place, llama, rows)
    assert not (place / "run" / name).exists()
    assert not (place / "run" / "checkpoints" / ".trash-0").exists()
