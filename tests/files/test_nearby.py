"""What is said of a path that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from loradock.files import nearby


def test_the_nearest_name_beside_it_is_asked_for_as_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs", "demo-001").touch()
    for typed in ("./runs/demo-01", "./runs/demo-01/"):
        assert nearby.hint(Path(typed), typed) == "did you mean ./runs/demo-001?"


def test_else_the_nearest_folder_that_is_there_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    for missing in (folder / "x", folder / "none" / "x", folder / "x\0y", folder / ("x" * 300)):
        assert nearby.hint(missing, str(missing)) == f"ls '{folder}'"
