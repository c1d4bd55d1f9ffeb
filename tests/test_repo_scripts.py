"""What a person types: the scripts start at once, mend themselves and name a remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("scripts/run", "scripts/test", "scripts/check", "scripts/lock", ".ci/run")


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what scripts/ need, in a folder with a space in its name, without git."""
    copy = tmp_path / "a check out"
    shutil.copytree(ROOT / "scripts", copy / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docker", copy / "docker")
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH folder with the basic tools, but no Python and no uv."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in "awk bash cat df dirname flock grep ls mkdir rm sed sha256sum uname".split():
        found = shutil.which(tool)
        assert found, tool
        (folder / tool).symlink_to(found)
    return folder


def made_venv(checkout: Path) -> Path:
    """An environment that carries a right stamp: what it would run is this test's interpreter."""
    venv = checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    door = venv / "bin" / "loradock"
    door.write_text('#!/bin/sh\necho "started with $*"\n', encoding="utf-8")
    door.chmod(0o755)
    stamp = run("bash", "-c", "source scripts/venv.sh && fingerprint runtime", cwd=checkout).stdout
    (venv / "loradock.stamp").write_text(stamp, encoding="utf-8")
    return venv


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_executable_and_says_what_it_does(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    first, second = path.read_text(encoding="utf-8").splitlines()[:2]
    assert first == "#!/usr/bin/env bash"
    assert second.startswith("# ")


def test_a_ready_environment_starts_within_30_ms_from_any_folder(checkout: Path, tmp_path: Path) -> None:
    made_venv(checkout)
    seconds: list[float] = []
    for _ in range(5):
        began = time.monotonic()
        done = run(checkout / "scripts" / "run", "train", "--demo", cwd=tmp_path)
        seconds.append(time.monotonic() - began)
        assert done.stdout == "started with train --demo\n"
        assert done.stderr == ""
    bare = time.monotonic()
    run("bash", "-c", "true")
    bare = time.monotonic() - bare
    assert min(seconds) - bare < 0.1, "30 ms on an idle machine; 100 ms leaves room for a busy one"


@pytest.mark.parametrize("changed", ["docker/requirements.lock", "pyproject.toml"])
def test_a_changed_lock_or_requirement_makes_the_environment_stale(checkout: Path, changed: str) -> None:
    made_venv(checkout)
    path = checkout / changed
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("click", "clack", 1), encoding="utf-8")
    ready = run("bash", "-c", "source scripts/venv.sh && is_ready runtime", cwd=checkout)
    assert ready.returncode == 1


def test_a_change_of_tool_settings_leaves_the_environment_as_it_is(checkout: Path) -> None:
    made_venv(checkout)
    with (checkout / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n[tool.other]\nkey = 1\n")
    assert run("bash", "-c", "source scripts/venv.sh && is_ready runtime", cwd=checkout).returncode == 0


def test_a_runtime_environment_is_not_enough_for_the_tests(checkout: Path) -> None:
    made_venv(checkout)
    assert run("bash", "-c", "source scripts/venv.sh && is_ready dev", cwd=checkout).returncode == 1


def test_without_python_and_uv_the_remedy_is_named(checkout: Path, bare_path: Path) -> None:
    done = run(shutil.which("bash") or "bash", checkout / "scripts" / "run", PATH=str(bare_path), LORADOCK_VENV="")
    assert done.returncode == 71
    assert "no working Python 3.11, 3.12 or 3.13 found" in done.stderr
    assert "hint: apt-get install python3 python3-venv" in done.stderr


def test_a_python_without_ensurepip_is_reported_as_on_plain_debian(checkout: Path, bare_path: Path) -> None:
    python = bare_path / "python3"
    # As Debian ships it: everything is there except ensurepip.
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    done = run(shutil.which("bash") or "bash", checkout / "scripts" / "run", PATH=str(bare_path), LORADOCK_VENV="")
    assert done.returncode == 71
    assert "ensurepip or venv is missing" in done.stderr
    assert "hint: apt-get install python3-venv" in done.stderr


def test_a_folder_with_other_files_is_never_cleared(checkout: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years", encoding="utf-8")
    done = run(checkout / "scripts" / "run", LORADOCK_VENV=str(precious))
    assert done.returncode == 71
    assert "no virtual environment" in done.stderr
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]


def test_the_locks_are_what_scripts_lock_made_from_the_pins() -> None:
    done = run(ROOT / "scripts" / "lock", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changed", "old", "new", "said"),
    [
        ("pyproject.toml", '"click>=8.1"', '"click>=8.2"', "its inputs changed"),
        ("docker/versions.json", "2.10.0", "2.10.1", "its inputs changed"),
        ("docker/requirements.lock", "--hash=sha256:0", "--hash=sha256:1", "edited by hand"),
    ],
)
def test_a_lock_that_no_longer_fits_is_noticed(checkout: Path, changed: str, old: str, new: str, said: str) -> None:
    path = checkout / changed
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    done = run(checkout / "scripts" / "lock", "--check")
    assert done.returncode == 1
    assert said in done.stderr
    assert "hint: scripts/lock" in done.stderr


@pytest.mark.parametrize(
    ("ci", "reason", "code"),
    [
        ("true", "the moon is down", 1),
        ("true", "shared data absent: tiny.json", 0),
        ("", "the moon is down", 0),
    ],
)
def test_under_ci_only_listed_reasons_may_skip(tmp_path: Path, ci: str, reason: str, code: int) -> None:
    for name in ("conftest.py", "skips.txt"):
        shutil.copy(ROOT / "tests" / name, tmp_path)
    (tmp_path / "test_some.py").write_text(
        f"import pytest\n\ndef test_good():\n    pass\n\ndef test_skipped():\n    pytest.skip({reason!r})\n",
        encoding="utf-8",
    )
    done = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, cwd=tmp_path, CI=ci)
    assert done.returncode == code, done.stdout
    assert ("skips that tests/skips.txt does not allow" in done.stdout) == bool(code)


def test_tests_marked_full_run_only_when_asked(tmp_path: Path) -> None:
    for name in ("conftest.py", "skips.txt"):
        shutil.copy(ROOT / "tests" / name, tmp_path)
    (tmp_path / "test_some.py").write_text(
        "import pytest\n\ndef test_quick():\n    pass\n\n@pytest.mark.full\ndef test_long():\n    pass\n",
        encoding="utf-8",
    )
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path)
    assert "1 passed, 1 deselected" in run(*pytest_command, cwd=tmp_path).stdout
    assert "2 passed" in run(*pytest_command, "--full", cwd=tmp_path).stdout
