"""`loradock build` and its thin door as a user types them, where no engine is needed: refusals and their remedies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thin(2)

ROOT = Path(__file__).parents[2]


def build(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `loradock build` where no engine answers."""
    environment = {**os.environ, "DOCKER_HOST": f"unix://{cwd}/none.sock", "XDG_CACHE_HOME": str(cwd / "cache")}
    command = [sys.executable, "-m", "loradock", "build", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--flash-attn", "maybe"), 64, "none of off, build, wheel:PATH"),
        (("--flash-attn", "wheel:"), 64, "none of off, build, wheel:PATH"),
        (("--flash-attn", "wheel:absent.whl"), 66, "no such file: absent.whl"),
        (("--ca", "absent.pem"), 66, "--ca: no such file: absent.pem"),
        ((), 71, "no container engine answers"),
        (("--dry-run",), 71, "no container engine answers"),
    ],
)
def test_what_cannot_be_meant_or_done_is_refused_with_a_remedy(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    refused = build(*arguments, cwd=tmp_path)
    assert refused.returncode == code, refused.stderr
    assert said in refused.stderr
    assert "\nhint: " in refused.stderr
    assert refused.stdout == ""


def test_a_pruning_without_an_engine_names_the_option_that_does_without(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock", "XDG_CACHE_HOME": str(tmp_path)}
    prune = (sys.executable, "-m", "loradock", "prune")
    refused = subprocess.run(prune, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert refused.returncode == 71
    assert "; loradock prune --no-engine leaves the engine out" in refused.stderr
    without = subprocess.run((*prune, "--no-engine"), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert without.returncode == 0, without.stderr


def test_help_lists_every_option_and_imports_no_engine(tmp_path: Path) -> None:
    script = "import sys, loradock.commands.build; print('docker' in sys.modules, 'torch' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert seen.stdout == "False False\n"
    told = build("--help", cwd=tmp_path).stdout
    for option in ("--tag", "--base-image", "--flash-attn", "--platform", "--pull", "--push", "--sbom", "--json"):
        assert option in told


@pytest.mark.parametrize(("arguments", "code"), [((), 64), (("--tag", "x"), 64), (("/nowhere/tmp",), 66)])
def test_the_thin_door_asks_for_an_existing_directory(arguments: tuple[str, ...], code: int) -> None:
    refused = subprocess.run([ROOT / "build_with_fss.sh", *arguments], capture_output=True, text=True)
    assert refused.returncode == code
    assert refused.stderr.startswith("error: ")
    assert "hint: " in refused.stderr
