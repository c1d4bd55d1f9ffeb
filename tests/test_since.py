"""`scripts/test --since BASE`: a small checkout in git, a change, and the test files that are to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thin(1)

ROOT = Path(__file__).parents[1]
FILES = {
    ".gitignore": "__pycache__\n",
    "pyproject.toml": "",
    "docker/requirements.lock": "",
    "docs/guide.md": "",
    "README.md": "scripts/run train\n",
    "src/loradock/__init__.py": "",
    "src/loradock/cli.py": 'COMMANDS = {\n    "train": ("loradock.commands.train", ""),\n'
    '    "prune-all": ("loradock.commands.prune", ""),\n}\n',
    "src/loradock/commands/__init__.py": "",
    "src/loradock/commands/train.py": "def train():\n    from loradock.registry import member\n",
    "src/loradock/commands/prune.py": "",
    "src/loradock/facts.py": "",
    "src/loradock/typed.py": "import typing\nif typing.TYPE_CHECKING:\n    from loradock.facts import Facts\n",
    "src/loradock/registry/__init__.py": "import importlib\ndef member(name):\n"
    "    return importlib.import_module(f'{__name__}.{name}')\n",
    "src/loradock/registry/one.py": "from loradock.facts import Facts\n",
    "src/loradock/registry/sizes.json": "{}",
    "tests/conftest.py": "import machine\n\ndef base():\n    import models\n\ndef trained(base):\n    pass\n",
    "tests/machine.py": "",
    "tests/models.py": "import loradock.typed\n",
    "tests/starting.py": "def started(*words):\n    return [1, '-m', 'loradock', *words]\n",
    "tests/alone/test_alone.py": "",
    "tests/commands/test_pruned.py": "from starting import started\ndone = started('prune-all', '--yes')\n",
    "tests/commands/test_readme.py": "text = ['scripts/run', 'README.md']\n",
    "tests/model/conftest.py": "import loradock.typed\n",
    "tests/model/test_beneath.py": "",
    "tests/program/test_module.py": "command = ['python', '-m', 'tool']\n",
    "tests/tool/__main__.py": "import tool.part\n",
    "tests/tool/part.py": "",
    "tests/test_cases.py": "found = Path('cases').glob('*.yaml')\n",
    "tests/cases/one.yaml": "",
    "tests/test_child.py": 'code = """\nfrom loradock import facts\n"""\n',
    "tests/test_document.py": "text = (ROOT / 'docs' / 'guide.md').read_text()\n",
    "tests/test_fixture.py": "def test_it(trained):\n    pass\n",
    "tests/test_registry.py": "from loradock.registry import member\n",
}
ALL = sorted(path for path in FILES if Path(path).name.startswith("test_"))
FACTS = ["tests/commands/test_readme.py", "tests/test_child.py", "tests/test_registry.py"]


def git(place: Path, *arguments: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *names, *arguments], cwd=place, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A committed checkout with the scripts."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "base")
    return tmp_path


def since(place: Path, base: str = "main") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, place / "scripts" / "since.py", base]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def changed(place: Path, path: str) -> list[str]:
    with (place / path).open("a", encoding="utf-8") as file:
        file.write("\n")
    done = since(place)
    assert done.returncode == 0, done.stderr
    assert f"{len(done.stdout.split())} of {len(ALL)} test files reach what differs (1 files)" in done.stderr
    return sorted(done.stdout.split())


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("tests/alone/test_alone.py", ["tests/alone/test_alone.py"]),
        ("src/loradock/facts.py", FACTS),  # through a function, a registry, a verb in a document, and another Python
        ("src/loradock/registry/sizes.json", ["tests/commands/test_readme.py", "tests/test_registry.py"]),
        ("src/loradock/commands/prune.py", ["tests/commands/test_pruned.py"]),
        ("src/loradock/typed.py", ["tests/model/test_beneath.py", "tests/test_fixture.py"]),
        ("tests/machine.py", ALL),
        ("tests/models.py", ["tests/test_fixture.py"]),
        ("tests/model/conftest.py", ["tests/model/test_beneath.py"]),
        ("tests/tool/part.py", ["tests/program/test_module.py"]),
        ("tests/cases/one.yaml", ["tests/test_cases.py"]),
        ("docs/guide.md", ["tests/test_document.py"]),
        (".gitignore", []),
    ],
)
def test_a_change_runs_the_tests_that_reach_it_and_no_other(checkout: Path, path: str, tests: list[str]) -> None:
    assert changed(checkout, path) == tests


@pytest.mark.parametrize("path", ["pyproject.toml", "docker/requirements.lock", "scripts/check"])
def test_a_requirement_a_lock_or_a_script_runs_all(checkout: Path, path: str) -> None:
    (checkout / path).write_text("# changed\n", encoding="utf-8")
    done = since(checkout)
    assert sorted(done.stdout.split()) == ALL
    assert done.stderr == f"all {len(ALL)} test files: {path} differs\n"


def test_what_is_committed_staged_removed_or_new_counts_and_what_the_base_has_since_does_not(checkout: Path) -> None:
    git(checkout, "checkout", "-qb", "work")
    (checkout / "tests" / "alone" / "test_alone.py").write_text("x = 1\n", encoding="utf-8")
    git(checkout, "commit", "-qam", "committed")
    (checkout / "src" / "loradock" / "commands" / "prune.py").unlink()
    (checkout / "docs" / "guide.md").write_text("staged\n", encoding="utf-8")
    git(checkout, "add", "docs")
    (checkout / "tests" / "test_new.py").write_text("", encoding="utf-8")
    git(checkout, "branch", "-q", "theirs", "main")
    git(checkout, "worktree", "add", "-q", str(checkout / "__pycache__" / "theirs"), "theirs")
    (checkout / "__pycache__" / "theirs" / "src" / "loradock" / "facts.py").write_text("x = 1\n", encoding="utf-8")
    git(checkout / "__pycache__" / "theirs", "commit", "-qam", "theirs")
    expected = ["alone/test_alone.py", "commands/test_pruned.py", "test_document.py", "test_new.py"]
    done = since(checkout, "theirs")
    assert sorted(done.stdout.split()) == [f"tests/{name}" for name in expected]
    assert "2 changed themselves, 1 by what they import or start, 1 by a name in them" in done.stderr


def test_an_unknown_revision_is_refused(checkout: Path) -> None:
    done = since(checkout, "nowhere")
    assert done.returncode == 1
    assert "Not a valid object name nowhere" in done.stderr
    assert "hint: scripts/test --since main" in done.stderr


@pytest.mark.full
def test_every_import_of_a_module_of_this_checkout_is_seen() -> None:
    """What Python loads for a test file, asked in a process of its own, is a part of what the graph says."""
    tests = ["tests/plan/test_plan.py", "tests/config/test_load.py", "tests/training/test_schedule.py"]
    program = (
        "import sys, importlib.util\nsys.path[:0] = ['src', 'tests', 'scripts']\nimport since\n"
        "graph = since.Graph(since.git('ls-files', '-z'), since.read)\n"
        "for test in sys.argv[1:]:\n"
        "    spec = importlib.util.spec_from_file_location('under_test', test)\n"
        "    spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
        "    files = {getattr(module, '__file__', None) or '' for module in list(sys.modules.values())}\n"
        "    loaded = {file.removeprefix(f'{since.ROOT}/') for file in files} & graph.paths\n"
        "    reached = set().union(*map(graph.reached, sys.argv[1:]))\n"
        "    print(len(loaded), *sorted(path for path in loaded - reached if not path.startswith('scripts/')))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", program, *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1:] for line in lines] == [[]] * len(tests)
    assert all(int(line.split()[0]) > 10 for line in lines)
