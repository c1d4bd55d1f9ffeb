"""The repository keeps its own promises: locks, pins, contracts, and nothing of one machine in it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = (
    "requirements.lock",
    "requirements-dev.lock",
    "requirements-deepspeed.lock",
    "requirements-harness.lock",
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = (
    *("Dockerfile", "entrypoint", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("src/**/*", "tests/**/*", "scripts/*", "docker/*", "docs/**/*", "bench/**/*", ".ci/*"),
)


def entries(lock: str) -> dict[str, frozenset[str]]:
    """`name==version ; marker` -> its hashes, for every package of a lock."""
    text = (ROOT / "docker" / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    packages: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement, *hashes = re.split(r"\s+--hash=", line.strip())
            packages[requirement] = frozenset(hashes)
    return packages


def pins() -> dict[str, dict[str, str]]:
    return json.loads((ROOT / "docker" / "versions.json").read_text(encoding="utf-8"))["python"]


def text_files() -> list[Path]:
    found = {path for pattern in OURS for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path for path in found if path.suffix in {".py", ".sh", ".md", ".yaml", ".toml", ".lock", ""})


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_an_exact_version_and_a_sha256(lock: str) -> None:
    packages = entries(lock)
    assert len(packages) > 100
    for requirement, hashes in packages.items():
        assert re.match(r"[a-z0-9-]+==\S+", requirement), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes), requirement


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_no_address(lock: str) -> None:
    text = (ROOT / "docker" / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text


@pytest.mark.parametrize("larger", LOCKS[1:3])
def test_the_runtime_lock_is_part_of_every_other(larger: str) -> None:
    assert entries(LOCKS[0]).items() <= entries(larger).items()


def test_the_deepspeed_lock_adds_only_deepspeed_and_what_it_needs() -> None:
    added = {requirement.partition("==")[0] for requirement in entries(LOCKS[2]).keys() - entries(LOCKS[0]).keys()}
    version = json.loads((ROOT / "docker" / "versions.json").read_text(encoding="utf-8"))["deepspeed"]["version"]
    assert added == {"deepspeed", "hjson", "msgpack", "ninja", "py-cpuinfo"}
    assert f"deepspeed=={version} ; sys_platform == 'linux'" in entries(LOCKS[2])


def test_the_harness_lock_has_another_version_only_where_lm_eval_needs_an_older_one() -> None:
    ours, theirs = (
        {requirement.partition("==")[0]: requirement for requirement in entries(lock)} for lock in (LOCKS[0], LOCKS[3])
    )
    other = {name for name, requirement in ours.items() if theirs.get(name) != requirement}
    assert other == {"python-dateutil", "tzdata"}
    assert "lm-eval" in theirs


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_is_what_the_locks_hold(lock: str) -> None:
    locked = {requirement.split(" ")[0] for requirement in entries(lock)}
    assert {f"{name}=={pin['version']}" for name, pin in pins().items()} <= locked


def test_every_pin_states_its_reason() -> None:
    assert all(len(pin["reason"]) > 20 for pin in pins().values())


def test_the_build_backend_is_locked_so_that_an_editable_install_needs_no_network() -> None:
    assert PROJECT["build-system"]["build-backend"] == "setuptools.build_meta"
    assert any(requirement.startswith("setuptools==") for requirement in entries(LOCKS[0]))


def test_the_layers_contract_covers_every_room() -> None:
    layers = next(c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["id"] == "layers")
    assert layers["exhaustive"]
    placed = {room.strip() for layer in layers["layers"] for room in re.split("[|:]", layer)}
    package = ROOT / "src" / "loradock"
    rooms = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    assert placed == rooms - {"__init__"}


def test_the_version_is_stated_once_in_the_package_and_once_in_the_metadata() -> None:
    from loradock import __version__

    assert PROJECT["project"]["version"] == __version__


# Places inside the image, which are the same everywhere: its user's home, and pip's cache while it is built. People
# whom a test made up.
OF_NO_MACHINE = r"loradock\b|\.cache/pip\b|ada\b|dave\b|<user>"


def test_no_file_names_a_path_of_one_machine() -> None:
    # Spelt in parts, so that this file does not find itself.
    places = ["/" + "work/", "/" + "root/", "/" + "home/", "/" + "tmp/brief"]
    found = [
        f"{path.relative_to(ROOT)}: {place}"
        for path in text_files()
        for place in places
        if re.search(rf"(?<![\w.$}}]){place}(?!{OF_NO_MACHINE})", path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_no_source_file_is_unfinished() -> None:
    words = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
    found = [str(path) for path in text_files() if words.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert found == []


def test_the_licence_is_the_whole_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_a_test_leaves_the_environment_check_out_by_one_function_that_asks_why() -> None:
    option = "--skip-" + "env-check"
    allowed = {"proven.py", "test_html_differences.py", "test_html_summary.py"}  # the latter two: what a record says
    found = [path for path in ROOT.glob("tests/**/*.py") if option in path.read_text(encoding="utf-8")]
    assert {path.name for path in found} <= allowed | {"test_train.py"}
    train = (ROOT / "tests" / "commands" / "test_train.py").read_text(encoding="utf-8")
    assert train.count(option) == train.count('{"skipped": "' + option) == 1


LINES = 300
"""What a file of the sources has at most."""


def test_no_file_of_the_sources_has_more_than_300_lines() -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for file in (ROOT / "src").rglob("*.py")
    }
    longer = {name: lines for name, lines in lengths.items() if lines > LINES}
    assert not longer, f"put what belongs together into a file of its own: {longer}"
