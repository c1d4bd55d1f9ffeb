"""What a person types: the scripts start at once, fix themselves and name a remedy."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = (
    "scripts/run",
    "scripts/test",
    "scripts/check",
    "scripts/lock",
    "scripts/real-model",
    "scripts/gpu",
    "scripts/gpu-wheels",
    ".ci/run",
)


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


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts of a copy leave alone the environment that these tests run in, wherever it is; no count is given."""
    for name in ("LORADOCK_VENV", "LORADOCK_TEST_PROCESSES"):
        monkeypatch.delenv(name, raising=False)


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
    for tool in "awk bash cat df dirname env flock grep ls mkdir mv rm sed sha256sum uname".split():
        found = shutil.which(tool)
        assert found, tool
        (folder / tool).symlink_to(found)
    return folder


def program(path: Path, text: str) -> None:
    """An executable file in place of what is there."""
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def made_venv(checkout: Path, *, kind: str = "runtime") -> Path:
    """An environment that carries a right stamp: what it would run is this test's interpreter."""
    venv = checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    program(venv / "bin" / "loradock", '#!/bin/sh\necho "started with $*"\n')
    stamp = run("bash", "-c", f"source scripts/venv.sh && fingerprint {kind}", cwd=checkout).stdout
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
    cpu_seconds: list[float] = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run(checkout / "scripts" / "run", "train", "--demo", cwd=tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.stdout == "started with train --demo\n"
        assert done.stderr == ""
    assert min(cpu_seconds) < 0.1, "30 ms on an idle machine; 100 ms is enough for a busy one"


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


def told_uv(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with a uv that writes down what it is asked for, and the file."""
    folder, log = tmp_path / "uv-bin", tmp_path / "uv.log"
    folder.mkdir()
    program(folder / "uv", f'#!/bin/sh\n[ "$1" = --version ] || echo "$*" >>"{log}"\n')
    return folder, log


def test_the_environment_of_another_checkout_is_refused_and_left_as_it_is(checkout: Path, tmp_path: Path) -> None:
    venv = made_venv(checkout)
    before = (venv / "loradock.stamp").read_text()
    other = tmp_path / "other"
    shutil.copytree(checkout, other, ignore=shutil.ignore_patterns(".venv"), symlinks=True)
    uv, log = told_uv(tmp_path)
    path = f"{uv}:{os.environ['PATH']}"
    done = run(other / "scripts" / "run", "runs", LORADOCK_VENV=str(venv), PATH=path)
    assert done.returncode == 71
    assert f"{venv} is the environment of another checkout, {checkout}" in done.stderr
    assert f"hint: LORADOCK_VENV={other}/.venv {other}/scripts/run ..." in done.stderr
    assert not log.exists()
    assert (venv / "loradock.stamp").read_text() == before
    assert run(checkout / "scripts" / "run", "runs").stdout == "started with runs\n"
    moved = checkout.rename(tmp_path / "moved")  # of a checkout that is gone it is taken over
    done = run(other / "scripts" / "run", "runs", LORADOCK_VENV=str(moved / ".venv"), PATH=path)
    assert done.stdout == "started with runs\n", done.stderr


def test_only_packages_that_are_missing_are_installed_and_only_many_are_called_several_gb(
    checkout: Path, tmp_path: Path
) -> None:
    venv = made_venv(checkout)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", venv)
    (venv / "lib").symlink_to(Path(sys.prefix) / "lib")
    uv, log = told_uv(tmp_path)
    lock = checkout / "docker" / "requirements.lock"
    for pins, said, asked in (
        ("click==0.0.1\npytest==0.0.2\nrich==0.0.3\n", "installing 3 locked packages (runtime)", 2),
        ("click==0.0.1\n" + pinned("rich", "pytest", "ruff"), "installing 1 of 4 locked packages (runtime)", 2),
        (pinned("click", "rich", "pytest"), "all 3 locked packages (runtime) are in", 1),
    ):
        lock.write_text(pins)
        log.unlink(missing_ok=True)
        done = run(checkout / "scripts" / "run", "runs", PATH=f"{uv}:{os.environ['PATH']}", LORADOCK_VENV=str(venv))
        assert done.stdout == "started with runs\n", done.stderr
        assert said in done.stderr
        assert ("several GB" in done.stderr) == ("==0.0.3" in pins)
        assert len(log.read_text().splitlines()) == asked


@pytest.mark.thin(2)
@pytest.mark.parametrize("works", [True, False])
def test_all_packages_are_installed_by_the_uv_of_the_lock_or_by_pip_where_it_cannot(
    checkout: Path, bare_path: Path, tmp_path: Path, works: bool
) -> None:
    """pip is a program here that writes down what it is asked for; the uv that it "installs" does so, too."""
    venv, log = made_venv(checkout), tmp_path / "asked"
    (venv / "loradock.stamp").write_text("runtime\n")  # of an earlier lock
    (checkout / "docker" / "requirements.lock").write_text("click==0.0.1\npytest==0.0.2\n")
    uv = f"#!/bin/sh\necho uv $UV_DEFAULT_INDEX $* >>{log}\nexit {0 if works else 2}\n"
    program(
        venv / "bin" / "python",
        f"""#!{shutil.which("bash")}
if [[ "$1 $2 $3 $4" == "-m pip config get" ]]; then
  [[ $5 == global.index-url ]] && echo https://packages.example/simple
elif [[ "$1 $2" == "-m pip" ]]; then
  echo "${{@:2}}" >>{log}
  while [[ $1 != --target && $# -gt 0 ]]; do shift; done
  if (($#)); then
    mkdir -p "$2/bin"
    printf %s {shlex.quote(uv)} >"$2/bin/uv"
    chmod +x "$2/bin/uv"
    cat "$2/uv.lock" >>{log}
  fi
elif [[ $2 == compileall ]]; then
  echo compiled >>{log}
else
  exec {sys.executable} "$@"
fi
""",
    )
    (bare_path / "chmod").symlink_to(shutil.which("chmod") or "")
    done = run(shutil.which("bash") or "bash", checkout / "scripts" / "run", "runs", PATH=str(bare_path))
    assert done.stdout == "started with runs\n", done.stderr
    assert ("uv cannot install them here" in done.stderr) == (not works)
    assert not (venv / ".uv").exists()
    asked = [line for line in log.read_text().splitlines() if "--hash=" not in line]
    by_uv = "uv https://packages.example/simple pip install --python"
    by_pip = "pip install --disable-pip-version-check --no-compile --require-hashes"
    begins = ("pip install --disable-pip-version-check --quiet --target", "uv==", by_uv)
    begins += () if works else (by_pip, "compiled")
    begins += ("pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e",)
    assert len(asked) == len(begins), asked
    for line, begin in zip(asked, begins, strict=True):
        assert line.startswith(begin), asked
    assert all("--require-hashes --no-deps --only-binary :all:" in line for line in asked if " -r " in line), asked


def pinned(*names: str) -> str:
    """Lines of a lock for what is installed here."""
    return "".join(f"{name}=={version(name)} ; sys_platform == 'linux' \\\n    --hash=sha256:0\n" for name in names)


def test_without_python_and_uv_the_remedy_is_named(checkout: Path, bare_path: Path) -> None:
    done = run(shutil.which("bash") or "bash", checkout / "scripts" / "run", PATH=str(bare_path), LORADOCK_VENV="")
    assert done.returncode == 71
    assert "no working Python 3.11, 3.12 or 3.13 found" in done.stderr
    assert "hint: apt-get install python3 python3-venv" in done.stderr


def test_a_python_without_ensurepip_is_reported_as_on_plain_debian(checkout: Path, bare_path: Path) -> None:
    # As Debian ships it: everything is there except ensurepip.
    text = f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n'
    program(bare_path / "python3", text)
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


def copy_conftest(folder: Path, *more: str) -> None:
    """tests/conftest.py, what it imports, and `more`."""
    (folder / "fakegpu").mkdir()
    for name in (
        "conftest.py",
        "commit.py",
        "proven.py",
        "skips.txt",
        "fakegpu/environment.py",
        "fakegpu/marker.py",
        *more,
    ):
        shutil.copy(ROOT / "tests" / name, folder / name)


@pytest.mark.parametrize(
    ("ci", "reason", "code"),
    [
        ("true", "the moon is down", 1),
        ("true", "shared data absent: tiny.json", 0),
        ("", "the moon is down", 0),
    ],
)
def test_under_ci_only_listed_reasons_may_skip(tmp_path: Path, ci: str, reason: str, code: int) -> None:
    copy_conftest(tmp_path)
    (tmp_path / "test_some.py").write_text(
        f"import pytest\n\ndef test_good():\n    pass\n\ndef test_skipped():\n    pytest.skip({reason!r})\n",
        encoding="utf-8",
    )
    done = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, cwd=tmp_path, CI=ci)
    assert done.returncode == code, done.stdout
    assert ("skips that tests/skips.txt does not allow" in done.stdout) == bool(code)


PROGRAM = "import signal; print(*(signal.getsignal(n) is signal.SIG_IGN for n in (1, 2, 15)))"


def test_what_tests_start_hears_signals_however_they_were_started(tmp_path: Path) -> None:
    copy_conftest(tmp_path)
    (tmp_path / "test_some.py").write_text(
        "import os, signal, subprocess, sys\n\ndef test_program():\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        f"    said = subprocess.check_output([sys.executable, '-c', {PROGRAM!r}], text=True)\n"
        "    assert said.split() == ['False'] * 3\n",
        encoding="utf-8",
    )
    deaf = 'trap "" HUP INT TERM; exec "$@"'
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path)
    assert "1 passed" in run("bash", "-c", deaf, "bash", *command, cwd=tmp_path).stdout


def test_tests_marked_full_run_only_when_asked(tmp_path: Path) -> None:
    copy_conftest(tmp_path)
    (tmp_path / "test_some.py").write_text(
        "import pytest\n\ndef test_quick():\n    pass\n\n@pytest.mark.full\ndef test_long():\n    pass\n",
        encoding="utf-8",
    )
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path)
    assert "1 passed, 1 deselected" in run(*pytest_command, cwd=tmp_path).stdout
    assert "2 passed" in run(*pytest_command, "--full", cwd=tmp_path).stdout


@pytest.mark.thin(3)
def test_of_tests_marked_thin_each_has_its_turn_and_all_run_unless_a_thin_run_is_asked_for(tmp_path: Path) -> None:
    copy_conftest(tmp_path)
    (tmp_path / "test_some.py").write_text(
        "import pytest\n\ndef test_always():\n    pass\n\n"
        "@pytest.mark.thin(3)\n@pytest.mark.parametrize('number', range(7))\ndef test_it(number):\n    pass\n\n"
        "@pytest.mark.thin(2)\ndef test_alone():\n    pass\n",
        encoding="utf-8",
    )
    (tmp_path / "test_costly.py").write_text(
        "import pytest\n\npytestmark = pytest.mark.thin(2, together=True)\n\ndef test_one():\n    pass\n\n"
        "def test_two():\n    pass\n",
        encoding="utf-8",
    )
    pytest_command = (sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", tmp_path)
    assert "11 passed" in run(*pytest_command, cwd=tmp_path).stdout
    assert "11 passed" in run(*pytest_command, "--thin", "1", "--full", cwd=tmp_path).stdout
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    run(*git, "init", "--quiet", cwd=tmp_path)
    turns: set[tuple[str, ...]] = set()
    turns_alone: set[bool] = set()
    together: set[int] = set()
    day = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2026-01-01T00:00:00Z")  # so that each hash is known
    for number in range(9):
        run(*git, "commit", "--quiet", "--allow-empty", "--message", str(number), cwd=tmp_path, **day)
        seen = run(*pytest_command, "--thin", "1", cwd=tmp_path).stdout
        assert "test_always PASSED" in seen
        turns_alone.add("test_alone PASSED" in seen)
        together.add(seen.count("test_costly.py::"))
        turns.add(tuple(line[len("test_some.py::test_it[")] for line in seen.splitlines() if "test_it[" in line))
    assert turns == {("0", "3", "6"), ("1", "4"), ("2", "5")}
    assert turns_alone == {True, False}
    assert together == {0, 2}


@pytest.mark.thin(3)
def test_a_campaign_with_a_ledger_goes_on_where_it_stopped_until_the_code_changes(tmp_path: Path) -> None:
    tests, source, ledger = tmp_path / "tests", tmp_path / "src", tmp_path / "ledger"
    for folder in (tests, source):
        folder.mkdir()
    copy_conftest(tests, "ledger.py")
    (source / "good.py").write_text("1", encoding="utf-8")
    (tests / "test_some.py").write_text(
        "import os\n\ndef test_good():\n    pass\n\ndef test_wants():\n    assert 'IT' in os.environ\n",
        encoding="utf-8",
    )
    commit = ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qam", "state"]
    for words in (["init", "-q"], ["add", "."], commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("__pycache__\n", encoding="utf-8")
    plain = ("-p", "no:cacheprovider", "-o", "pythonpath=tests", f"--ledger={ledger}", "tests")
    command = (sys.executable, "-m", "pytest", "-q", *plain)
    assert "1 failed, 1 passed" in run(*command, cwd=tmp_path).stdout
    assert "1 passed, 1 deselected" in run(*command, cwd=tmp_path, IT="1").stdout
    assert "2 deselected" in run(*command, cwd=tmp_path).stdout
    (source / "good.py").write_text("2", encoding="utf-8")
    assert "commit these first" in run(*command, cwd=tmp_path).stderr
    subprocess.run(["git", *commit], cwd=tmp_path, check=True)
    assert "holds results of other code" in run(*command, cwd=tmp_path).stderr


SHARED = """
import os, time
from pathlib import Path
import pytest
LOG = Path(os.environ["LOG"])
@pytest.mark.parametrize("number", [0, 1])
def test_it(number):
    with LOG.open("a") as log:
        log.write(f"{__file__} {number} {os.getpid()}\\n")
    until = time.monotonic() + 200
    while len({line.split()[2] for line in LOG.read_text().splitlines()}) < 2:
        assert time.monotonic() < until, "no other process runs tests"
        time.sleep(0.01)
"""


@pytest.mark.thin(1)
def test_two_processes_run_each_test_once_a_file_by_one_of_them_and_the_long_ones_first(tmp_path: Path) -> None:
    copy_conftest(tmp_path)
    others = [f"{room}/test_{name}.py" for room in ("data", "published") for name in "ab"]
    files = ["image/test_a.py", "image/test_z.py", *others]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(SHARED, encoding="utf-8")
    log = tmp_path / "log"
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-n", "2", "--no-loadscope-reorder"]
    done = run(sys.executable, "-m", "pytest", *options, cwd=tmp_path, LOG=str(log))
    assert done.returncode == 0, done.stdout
    assert "12 passed" in done.stdout
    ran = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    assert sorted((file, int(number)) for file, number, _ in ran) == sorted(
        (str(tmp_path / file), number) for file in files for number in (0, 1)
    )
    pairs = {(file, process) for file, _, process in ran}
    assert len(pairs) == len(files)
    for process in {process for _, _, process in ran}:
        rooms = [Path(file).parent.name for file, _, by in ran if by == process]
        assert rooms == sorted(rooms, key=("image", "published", "data").index)
    image = [process for file, _, process in ran if "/image/" in file]
    assert len(set(image)) == 1
    assert [file for file, _, process in ran if process == image[0]][:4] == [
        str(tmp_path / file) for file in files[:2] for _ in (0, 1)
    ]


@pytest.mark.thin(3)
def test_the_test_script_runs_all_tests_of_this_checkout_and_with_arguments_just_those(checkout: Path) -> None:
    program(made_venv(checkout, kind="dev") / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (checkout / "tests").mkdir()
    copy_conftest(checkout / "tests")
    for name in "ab":
        text = f"def test_one():\n    print({name!r})\n\ndef test_other():\n    pass\n"
        (checkout / "tests" / f"test_{name}.py").write_text(text, encoding="utf-8")
    whole = run(checkout / "scripts" / "test")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert f"{min(os.sysconf('SC_NPROCESSORS_ONLN') + 1, 4)} workers [4 items]" in whole.stdout
    assert "4 passed" in whole.stdout
    one = run(checkout / "scripts" / "test", "tests/test_b.py", "-k", "one", "-s")
    assert one.returncode == 0, one.stdout + one.stderr
    assert "tests/test_b.py b\n" in one.stdout
    assert one.stdout.count("collected 2 items / 1 deselected") == 1


@pytest.mark.thin(3)
def test_the_test_script_runs_what_reaches_a_change_since_a_revision(checkout: Path) -> None:
    program(made_venv(checkout, kind="dev") / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (checkout / "tests").mkdir()
    copy_conftest(checkout / "tests")
    (checkout / "src" / "loradock").mkdir(parents=True)
    (checkout / "src" / "loradock" / "cli.py").touch()
    for name in "ab":
        (checkout / "tests" / f"test_{name}.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
    (checkout / ".gitignore").write_text("__pycache__\n.*\n*.egg-info\n", encoding="utf-8")
    commit = ("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "base")
    for words in (("init", "-q"), ("add", "."), commit):
        subprocess.run(["git", *words], cwd=checkout, check=True)
    unchanged = run(checkout / "scripts" / "test", "--since", "HEAD")
    assert (unchanged.returncode, unchanged.stdout) == (0, "")
    assert "0 of 2 test files reach what differs (0 files)" in unchanged.stderr
    with (checkout / "tests" / "test_b.py").open("a", encoding="utf-8") as file:
        file.write("\n\nimport pytest\n\n@pytest.mark.thin(2)\n@pytest.mark.parametrize('number', range(16))\n")
        file.write("def test_other(number):\n    pass\n")
    for arguments in ([], ["-q"]):
        done = run(checkout / "scripts" / "test", "--since", "HEAD", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 of 2 test files reach what differs (1 files): 1 changed themselves" in done.stderr
        assert sum(int(count) for count in re.findall(r"(\d+) passed", done.stdout)) == 17
    assert "= 4 passed in" in run(checkout / "scripts" / "test").stdout
    assert "= 10 passed in" in run(checkout / "scripts" / "test", LORADOCK_TEST_TURNS="1").stdout
    nothing = run(checkout / "scripts" / "test", "--since")
    assert (nothing.returncode, nothing.stderr.splitlines()[-1]) == (64, "hint: scripts/test --since main")


@pytest.mark.thin(1)
def test_the_test_script_fails_with_any_test_and_one_verdict_on_the_machine_serves_all(checkout: Path) -> None:
    program(made_venv(checkout, kind="dev") / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (checkout / "tests").mkdir()
    copy_conftest(checkout / "tests")
    for name, outcome in {"a": "True", "b": "True", "c": "False"}.items():
        text = f"import os\n\ndef test_one():\n    print(os.environ['LORADOCK_TESTS_VERDICT'])\n    assert {outcome}\n"
        (checkout / "tests" / f"test_{name}.py").write_text(text, encoding="utf-8")
    done = run(checkout / "scripts" / "test", "-n", "2", "-rP")
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout
    places = re.findall(r"^/.*/verdict$", done.stdout, re.MULTILINE)
    assert len(places) == 3
    assert len(set(places)) == 1


@pytest.mark.thin(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_test_script_ends_all_processes_as_ctrl_c_does(
    checkout: Path, tmp_path: Path, number: signal.Signals
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    program(made_venv(checkout, kind="dev") / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (checkout / "tests").mkdir()
    copy_conftest(checkout / "tests")
    text = f"""import os, pathlib, time
def test_long():
    mark = pathlib.Path({str(marks)!r}, str(os.getpid()))
    try:
        mark.write_text("runs")
        time.sleep(600)
    except KeyboardInterrupt:
        mark.write_text("interrupted")
        raise
"""
    for name in "abc":
        (checkout / "tests" / f"test_{name}.py").write_text(text, encoding="utf-8")
    command, three = [checkout / "scripts" / "test"], {**os.environ, "LORADOCK_TEST_PROCESSES": "3"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=three) as process:
        until = time.monotonic() + 200
        while [mark.read_text(encoding="utf-8") for mark in marks.iterdir()] != ["runs"] * 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        os.killpg(process.pid, number)
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 130
    assert [mark.read_text(encoding="utf-8") for mark in marks.iterdir()] == ["interrupted"] * 3
    assert "KeyboardInterrupt" in said


def test_a_real_model_without_a_name_installs_nothing(checkout: Path, tmp_path: Path) -> None:
    uv, log = told_uv(tmp_path)
    done = run(checkout / "scripts" / "real-model", PATH=f"{uv}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (64, "error: no model is named\nhint: scripts/real-model smollm2\n")
    assert not log.exists()
    assert not (checkout / ".venv").exists()
