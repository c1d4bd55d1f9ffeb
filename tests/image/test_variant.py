"""The image variant deepspeed: its lock, its tag, and in a real build its compiler and the wheel made from source."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from light_image import PACKAGES, light_checkout

from loradock.delivery.image.build import tag_of
from loradock.delivery.image.inputs import BuildAsk, checkout
from loradock.delivery.image.space import Places, Sizes
from loradock.delivery.image.wheels import downloaded
from loradock.errors import InputMissing

if TYPE_CHECKING:
    from docker import DockerClient

ROOT = Path(__file__).parents[2]
ADDED = ("deepspeed", "hjson", "msgpack", "ninja", "py-cpuinfo")


def light_variant(folder: Path) -> Path:
    """A light checkout whose DeepSpeed lock is as light, but for what DeepSpeed brings."""
    root = light_checkout(folder)
    lock = root / "docker" / "requirements-deepspeed.lock"
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    entries = [entry.strip() for entry in re.split(r"\n(?=[a-z0-9])", "\n".join(lines))]
    kept = [entry for entry in entries if entry.partition("==")[0] in (*PACKAGES, *ADDED)]
    lock.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return root


def test_a_variant_is_named_in_the_tag_and_a_tag_of_ones_own_stays(tmp_path: Path) -> None:
    standard, variant = BuildAsk(scratch=tmp_path), BuildAsk(scratch=tmp_path, variant="deepspeed")
    assert tag_of(variant) == f"{tag_of(standard)}-deepspeed"
    assert tag_of(BuildAsk(scratch=tmp_path, variant="deepspeed", tag="mine:1")) == "mine:1"


def test_a_variant_has_a_lock_of_its_own_and_layers_of_its_own(tmp_path: Path) -> None:
    root = light_variant(tmp_path / "loradock")
    standard, variant = checkout(root), checkout(root, variant="deepspeed")
    assert "\ndeepspeed==" in variant.lock
    assert "deepspeed" not in standard.lock
    assert variant.lock_sha256 != standard.lock_sha256
    assert variant.packages_sha256 != standard.packages_sha256
    variant.lock_file.unlink()
    with pytest.raises(InputMissing):
        checkout(root, variant="deepspeed")


def test_a_variant_needs_room_for_its_compiler(tmp_path: Path) -> None:
    source = checkout(ROOT, variant="deepspeed")
    sizes, where = Sizes(source.sizes_file, lock=source.lock), Places(root=tmp_path, tmp=tmp_path)
    given = {"scratch": tmp_path, "has_layers": False, "has_base": True, "compiles": False, "has_devel": False}
    plain = sizes.needs(where, **given)
    more = sizes.needs(where, **given, variant="deepspeed")
    assert {need.what for need in more} - {need.what for need in plain} == {"system packages of deepspeed"}


def test_a_source_release_counts_as_fetched() -> None:
    lines = ["Saved /wheels/hjson-3.1.0-py3-none-any.whl", "Saved /wheels/deepspeed-0.19.8.tar.gz"]
    assert downloaded(lines) == {"hjson-3.1.0-py3-none-any.whl", "deepspeed-0.19.8.tar.gz"}


@pytest.mark.full
def test_a_real_build_of_the_variant_has_deepspeed_a_compiler_and_its_label(
    engine: DockerClient, base_image: str, tmp_path: Path
) -> None:
    root = light_variant(tmp_path / "loradock")
    command = [sys.executable, "-m", "loradock", "build", "--json", "--variant", "deepspeed", "--context", str(root)]
    command += ["--tag", "loradock:test-variant", "--base-image", base_image, "--scratch", str(tmp_path / "scratch")]
    if trusted := os.environ.get("SSL_CERT_FILE"):
        command += ["--ca", trusted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["variant"] == "deepspeed"
    image = engine.images.get("loradock:test-variant")
    try:
        assert image.labels["loradock.variant"] == "deepspeed"
        script = "g++ --version | head -n 1; "
        script += "python -c 'from importlib.metadata import version; print(version(\"deepspeed\"))'"
        said = engine.containers.run(
            "loradock:test-variant", ["-c", script], entrypoint="/bin/bash", remove=True, network_mode="none"
        ).decode()
        assert "g++" in said
        assert "0.19.8" in said
    finally:
        engine.images.remove("loradock:test-variant", force=True)
