"""scripts/real-model: offline, with another content, interrupted, and two at once. The package is small (7 MB)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from real.conftest import SCRIPT, UNREACHABLE, Real

pytestmark = pytest.mark.thin(2)

NAME = "mistral-v3"
WHEEL = "mistral_common-1.13.1-py3-none-any.whl"
# Neither a registry nor a cache: what pip, uv and npm then can take is what lies in a folder that is named.
OFFLINE = {"PIP_NO_INDEX": "1", "UV_NO_INDEX": "1", "UV_OFFLINE": "1", "npm_config_offline": "true"}


def begun(cache: Path, *names: str, **variables: str) -> subprocess.Popen[str]:
    """The script, in a session of its own."""
    private = {"LORADOCK_CACHE": str(cache), "PIP_FIND_LINKS": ""}
    private |= {"UV_CACHE_DIR": str(cache / "uv"), "npm_config_cache": str(cache / "npm")}
    return subprocess.Popen(
        [sys.executable, SCRIPT, *names],
        env={**os.environ, **private, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    stdout, stderr = process.communicate(timeout=300)
    return process.returncode, stdout, stderr


def kept(cache: Path) -> list[str]:
    """What lies in the cache, but for locks."""
    return sorted(path.name for path in (cache / "real").iterdir() if path.suffix != ".lock")


@pytest.mark.parametrize("name", [NAME, "qwen3"])
def test_without_a_network_it_says_so_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    code, stdout, stderr = ended(begun(tmp_path, name, **OFFLINE))
    assert (code, stdout) == (UNREACHABLE, ""), stderr
    assert "cannot be fetched" in stderr.splitlines()[0]
    assert stderr.splitlines()[-1].startswith("hint: connect")
    assert kept(tmp_path) == []


def test_a_package_of_that_name_with_another_content_is_refused(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    with zipfile.ZipFile(mirror / WHEEL, "w") as wheel:
        wheel.writestr("mistral_common/data/anything", "not the package")
    offered = {**OFFLINE, "PIP_FIND_LINKS": str(mirror), "UV_FIND_LINKS": str(mirror)}
    code, stdout, stderr = ended(begun(tmp_path, NAME, **offered))
    assert (code, stdout) == (65, ""), stderr
    assert "is not the package whose digest is known" in stderr
    assert kept(tmp_path) == []


def test_two_at_once_print_the_same_directory_and_a_third_finds_it_offline(real: Real, tmp_path: Path) -> None:
    real(NAME)
    links = os.environ.get("PIP_FIND_LINKS", "")
    both = [begun(tmp_path, NAME, PIP_FIND_LINKS=links) for _ in range(2)]
    found = [ended(process) for process in both]
    directory = tmp_path / "real" / "mistral-v3-1.13.1"
    assert [(code, stdout) for code, stdout, _ in found] == [(0, f"{directory}\n")] * 2, found
    assert kept(tmp_path) == [directory.name]
    assert ended(begun(tmp_path, NAME, **OFFLINE))[:2] == (0, f"{directory}\n")


def test_what_was_killed_half_way_is_made_by_the_next_call(real: Real, tmp_path: Path) -> None:
    real(NAME)
    links = os.environ.get("PIP_FIND_LINKS", "")
    first = begun(tmp_path, NAME, PIP_FIND_LINKS=links)
    while not (tmp_path / "real" / f"{NAME}.part" / "made").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.001)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert kept(tmp_path) == [f"{NAME}.part"]
    code, stdout, stderr = ended(begun(tmp_path, NAME, PIP_FIND_LINKS=links))
    assert code == 0, stderr
    assert sorted(path.name for path in Path(stdout.strip()).iterdir()) == ["tokenizer.model", "tokenizer_config.json"]
    assert kept(tmp_path) == ["mistral-v3-1.13.1"]
