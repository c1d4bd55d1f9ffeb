"""A sidecar comes back as it was written; one that is missing, no JSON or of other fields is told as that."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from loradock.errors import InputMissing, ModelError
from loradock.files import sidecar


class Settings(BaseModel):
    """What a file says."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    sizes: list[int] = []


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    assert sidecar.read(file, Settings, hint="") is None
    sidecar.write(file, Settings(name="é", sizes=[1, 2]))
    assert sidecar.read(file, Settings, hint="") == Settings(name="é", sizes=[1, 2])
    assert file.read_text(encoding="utf-8").startswith('{\n  "name": "é",\n')
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


@pytest.mark.parametrize(
    ("text", "what", "problems"),
    [
        ('{"name": 3, "other": 1}', "settings.json is wrong", ["name: Input should be a valid string", "other: Extra"]),
        ("{", "settings.json is not JSON", []),
    ],
)
def test_each_field_that_is_wrong_is_named(tmp_path: Path, text: str, what: str, problems: list[str]) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    with pytest.raises(ModelError, match=what) as refused:
        sidecar.read(file, Settings, hint="copy it again")
    assert refused.value.hint == "copy it again"
    found = [problem.what for problem in refused.value.problems]
    assert len(found) == len(problems)
    assert all(text.startswith(start) for text, start in zip(found, problems, strict=True))


def test_a_folder_in_its_place_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="cannot be read"):
        sidecar.read(tmp_path, Settings, hint="")
