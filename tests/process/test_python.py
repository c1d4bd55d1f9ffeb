"""A Python that we start imports nothing that happens to lie in the working directory."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from faults.forking import Forking
from proven import unchecked

pytestmark = pytest.mark.thin(1)

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "loradock"
PROGRAM = Path(sys.executable).with_name("loradock")
DOOR = SOURCES / "process" / "python.py"


def starts_of_python(tree: ast.AST) -> Iterator[int]:
    """Lines with a command line that begins with this interpreter, or a plain name of Python, and -c or -m."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List) and node.elts:
            first, words = ast.unparse(node.elts[0]), [ast.unparse(each) for each in node.elts[1:]]
            if first == "sys.executable" or ("python" in first and {"'-c'", "'-m'"} & set(words)):
                yield node.lineno


def test_every_python_of_ours_is_started_by_the_one_door() -> None:
    found = {
        f"{file.relative_to(SOURCES)}:{line}"
        for file in SOURCES.rglob("*.py")
        for line in starts_of_python(ast.parse(file.read_text(encoding="utf-8")))
        if file != DOOR
    }
    in_the_image = {place for place in found if place.startswith("delivery/image/stages.py")}
    assert found == in_the_image, "start it by loradock.process.python.command"
    assert len(in_the_image) == 1
    assert set(starts_of_python(ast.parse(DOOR.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A working directory with a module of every name that could be imported; each names itself in the file beside."""
    place = tmp_path_factory.mktemp("planted")
    imported = place.with_name("imported")
    names = {*sys.stdlib_module_names, *packages_distributions()} - {"loradock"}
    for name in filter(str.isidentifier, names):
        text = f"print({name!r}, file=open({str(imported)!r}, 'a'))\nraise SystemExit({name!r})\n"
        (place / f"{name}.py").write_text(text)
    return place, imported


def started(place: Path, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    more = {"LORADOCK_CACHE": f"{place}-cache", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, cwd=place, env=clean | more, capture_output=True, text=True, timeout=600)


LAUNCHED = ("launch", "--nproc", "1", "train", "--output", "{run}", "--max-steps", "1", "--set", "data.workers=2")
VERBS = {
    "launch": LAUNCHED,
    "merge": ("merge", "{run}", "merged", "--verify", "full"),
    "env-check": ("env-check", "--only", "protobuf"),
}


@pytest.mark.thin(6)
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_imports_a_module_from_the_working_directory(
    verb: str, planted: tuple[Path, Path], llama: Path, rows: Path, forking: Forking, tmp_path: Path
) -> None:
    """Nor do the processes that it starts: ranks, preparers of rows, those that open a tokenizer or a merged model."""
    place, imported = planted
    of_run = ("--model", str(llama), "--data", str(rows), unchecked("an environment that the tests check elsewhere"))
    if verb == "merge":
        made = forking.run(tmp_path, "train", *of_run, "--output", "run", "--max-steps", "1")
        assert made.returncode == 0, made.stderr
    words = [word.format(run=tmp_path / "run") for word in VERBS[verb]]
    done = started(place, PROGRAM, *words, *(of_run if verb == "launch" else ()))
    assert not imported.exists(), imported.read_text()
    assert done.returncode == 0 or verb == "env-check", done.stderr[-3000:]


def test_python_m_loradock_imports_what_is_installed(planted: tuple[Path, Path], tmp_path: Path) -> None:
    """But for what Python imports for `-m` itself, before a line of ours."""
    (tmp_path / "nothing.py").write_text("import sys\nprint(*sys.modules)")
    before_us = started(tmp_path, sys.executable, "-m", "nothing").stdout.split()
    assert len(before_us) < len(sys.stdlib_module_names) / 2
    for file in planted[0].glob("*.py"):
        if file.stem not in before_us:
            (tmp_path / file.name).symlink_to(file)
    for path in ("", ":", f":{ROOT / 'src'}"):
        done = started(tmp_path, sys.executable, "-m", "loradock", "env-check", "--list", PYTHONPATH=path)
        assert not planted[1].exists(), planted[1].read_text()
        assert done.returncode == 0, done.stderr


CHILD = """
import os, subprocess, sys
from loradock.process import python
python.leave_working_directory()
ours = subprocess.run(python.command("-c", "import mine"))
theirs = subprocess.run([sys.executable, "-c", "import mine"])
sys.exit(ours.returncode or theirs.returncode)
"""


@pytest.mark.parametrize(("path", "code"), [("lib", 0), (".", 0), ("", 1), (":", 1)])
def test_what_pythonpath_names_is_imported_and_its_empty_parts_are_not(tmp_path: Path, path: str, code: int) -> None:
    place = tmp_path / "lib" if path == "lib" else tmp_path
    place.mkdir(exist_ok=True)
    (place / "mine.py").write_text("")
    path = str(tmp_path / path) if path in {"lib", "."} else path
    done = started(tmp_path, sys.executable, "-c", CHILD, PYTHONPATH=f"{path}{os.pathsep}{ROOT / 'src'}")
    assert done.returncode == code, done.stderr


def test_a_checkout_that_is_the_working_directory_serves_its_children_too(tmp_path: Path) -> None:
    code = "import subprocess, sys\nfrom loradock.process import python\npython.leave_working_directory()\n"
    code += 'sys.exit(subprocess.run(python.command("-S", "-c", "import loradock")).returncode)\n'
    (tmp_path / "loradock").symlink_to(SOURCES)
    assert started(tmp_path, sys.executable, "-S", "-c", code).returncode == 0


def test_a_working_directory_that_was_removed_is_no_obstacle(tmp_path: Path) -> None:
    code = (
        "import os, sys\nos.rmdir(os.getcwd())\nfrom loradock.process import python\npython.leave_working_directory()"
    )
    gone = tmp_path / "gone"
    gone.mkdir()
    assert started(gone, sys.executable, "-c", code).returncode == 0


def test_the_image_keeps_the_working_directory_off_every_module_path() -> None:
    stages = (ROOT / "Dockerfile").read_text(encoding="utf-8").partition("AS venv")[2]
    assert "PYTHONSAFEPATH=1" in stages
