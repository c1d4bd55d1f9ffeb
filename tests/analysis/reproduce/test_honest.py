"""Honest repeats: what surrounds a run and changes no bit of it is no difference."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tiny import copy_tree, write_rows
from whole_runs import train

import loradock
from loradock.analysis.reproduce.differences import NUMPY
from loradock.cli import cli
from loradock.machine.library_variables import ALLOCATOR

pytestmark = pytest.mark.thin(1)

SETTINGS = ("train.max_steps=4", "train.global_batch=2", "lora.rank=2", "data.max_length=64", "train.workers=0")
READING = "+dac_read_search"
"""So that nobody reads an interpreter in root's home, too."""
AS_NOBODY = [
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *(f"--inh-caps={READING}", f"--ambient-caps={READING}"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """A folder that everybody may read, with a base, rows and a run of both, named by relative paths."""
    folder = tmp_path_factory.mktemp("honest") / "made"
    copy_tree(llama, folder / "base")
    write_rows(folder / "rows.jsonl")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for name, value in ALLOCATOR.items():
            patched.setenv(name, value)
        train(folder / "run", *SETTINGS, model=Path("base"), data=Path("rows.jsonl"))
    return folder


def checked(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["reproduce", *words, "--check-only", "--json"])
    assert done.exception is None, done.exception
    return json.loads(done.stdout)


VARIABLES = {
    "another home": {"HOME": "/nonexistent"},
    "another language": {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"},
    "no language": {"LANG": "C", "LC_ALL": "C"},
    "another time zone": {"TZ": "Pacific/Kiritimati"},
    "another user's name": {"USER": "somebody", "LOGNAME": "somebody"},
    "another cache": {"LORADOCK_CACHE": "/nonexistent/cache", "XDG_CACHE_HOME": "/nonexistent"},
    "another cache of the hub": {"HF_HOME": "/nonexistent/hub"},
    "another seed of hashes": {"PYTHONHASHSEED": "7"},
    "another path": {"PATH": "/usr/bin:/bin"},
    "another terminal": {"TERM": "dumb", "COLUMNS": "40", "NO_COLOR": "1"},
    "another scratch": {"TMPDIR": "/var/tmp"},
    "trackers that are set up": {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "file:/nonexistent"},
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_that_no_kernel_reads(name: str, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in VARIABLES[name].items():
        monkeypatch.setenv(variable, value)
    assert checked(str(made / "run"))["differences"] == []


def moved(folder: Path) -> list[str]:
    (folder / "run").rename(folder / "other")
    return [str(folder / "other")]


def linked(folder: Path) -> list[str]:
    (folder / "by-a-link").symlink_to(folder / "base")
    (folder / "run-by-a-link").symlink_to(folder / "run")
    return [str(folder / "run-by-a-link"), "--model", str(folder / "by-a-link")]


def touched(folder: Path) -> list[str]:
    for file in folder.rglob("*"):
        os.utime(file, (0, 0))
    return [str(folder / "run")]


def unwritable(folder: Path) -> list[str]:
    for file in [folder, *folder.rglob("*")]:
        file.chmod(0o555 if file.is_dir() else 0o444)
    return [str(folder / "run")]


def hard_linked(folder: Path) -> list[str]:
    os.link(folder / "rows.jsonl", folder / "same.jsonl")
    return [str(folder / "run"), "--data", str(folder / "same.jsonl")]


def of_another_day(folder: Path) -> list[str]:
    file = folder / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(record | {"started": "2019-02-28T23:59:59+00:00"}), "utf-8")
    return [str(folder / "run")]


def of_another_machine(folder: Path) -> list[str]:
    """More memory, another kernel and host, outside of a container."""
    file = folder / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    record["facts"] |= {"memory_bytes": 1 << 40, "platform": "Linux-5.4", "in_container": False}
    file.write_text(json.dumps(record), "utf-8")
    return [str(folder / "run")]


def of_another_python(folder: Path) -> list[str]:
    """With the other numpy of the lock: what it shuffles is the same."""
    file = folder / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    facts = record["facts"]
    (other,) = NUMPY - {facts["packages"]["numpy"]}
    facts |= {"python": "3.99.0", "packages": {**facts["packages"], "numpy": other}}
    file.write_text(json.dumps(record), "utf-8")
    return [str(folder / "run")]


def by_its_card(folder: Path) -> list[str]:
    shutil.copytree(folder / "run" / "adapter", folder / "taken")
    shutil.rmtree(folder / "run")
    return [str(folder / "taken" / "README.md")]


PLACES: dict[str, Callable[[Path], list[str]]] = {
    "a run that was moved": moved,
    "links": linked,
    "times of files": touched,
    "modes of files": unwritable,
    "a hard link": hard_linked,
    "another day": of_another_day,
    "another machine of its kind": of_another_machine,
    "another Python": of_another_python,
    "the card alone": by_its_card,
}


@pytest.mark.parametrize("name", PLACES)
def test_places_and_what_lies_around(name: str, made: Path, tmp_path: Path) -> None:
    folder = copy_tree(made, tmp_path / "copy")
    found = checked(*PLACES[name](folder))["differences"]
    assert [each["name"] for each in found if each["changes"] != "nothing"] == []
    assert [each["name"] for each in found] == (["numpy", "Python"] if name == "another Python" else [])


def test_a_working_directory_and_a_relative_path(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made / "base")
    assert checked("../run")["differences"] == []


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.thin(3)
@pytest.mark.parametrize("who", ["another copy of the code", "another user"])
def test_another_installation_and_another_user(who: str, made: Path, open_folder: Path) -> None:
    """In a process of its own: the package lies elsewhere, with byte-code beside it; nobody's user id and umask.

    Nobody cannot look into the folder that the run was made in.
    """
    folder = open_folder
    code = shutil.copytree(Path(loradock.__file__).parent, folder / "site" / "loradock")
    copy_tree(made, folder / "made")
    as_user: list[str] = []
    if who == "another user":
        if os.getuid() or not shutil.which("setpriv"):
            pytest.skip("only root may become another user, by setpriv")
        as_user = AS_NOBODY
    environment = {**os.environ, **ALLOCATOR, "PYTHONPATH": str(code.parent), "HOME": "/nonexistent"}
    words = ("reproduce", str(folder / "made" / "run"), "--check-only", "--json")
    command = [*as_user, sys.executable, "-P", "-m", "loradock", *words]
    done = subprocess.run(
        command, env=environment, cwd=folder / "made", capture_output=True, text=True, check=False, umask=0o077
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["differences"]
    assert [each["name"] for each in found if each["changes"] != "nothing"] == []
