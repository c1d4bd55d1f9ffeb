"""What decides whether a build finds its layers ready: the digest of all below loradock's own code, as a label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError
from light_image import light_checkout

from loradock.delivery.image import labels
from loradock.delivery.image.build import BASE_NAME, _has_layers
from loradock.delivery.image.inputs import checkout

BASE = "base@sha256:1"
INSTALLED = {"Description": "mount / from exec /bin/bash -c /run/loradock/install_venv", "Size": 8_000}


class Engine:
    """An engine with one image and this build cache; like a real one it lists what carries every label asked for."""

    def __init__(self, packages: str, *, base: str = BASE, cache: list[dict[str, Any]] | None = None) -> None:
        self.labels = {f"{labels.PACKAGES}={packages}", f"{BASE_NAME}={base}"}
        self.cache = cache
        self.images = self

    def list(self, *, filters: dict[str, list[str]]) -> list[str]:
        return ["image"] if set(filters["label"]) <= self.labels else []

    def df(self) -> dict[str, Any]:
        if self.cache is None:
            raise APIError("a disk usage operation is already running")
        return {"BuildCache": self.cache}


def has_layers(engine: Any, packages: str) -> bool:
    return _has_layers(engine, packages=packages, base=BASE, at_least=4_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return light_checkout(tmp_path_factory.mktemp("checkout") / "loradock")


def test_the_layers_are_there_only_for_an_image_of_the_same_packages_on_the_same_base_with_its_cache(
    folder: Path,
) -> None:
    packages = checkout(folder).packages_sha256
    assert has_layers(Engine(packages, cache=[INSTALLED]), packages)
    assert not has_layers(Engine("0" * 64, cache=[INSTALLED]), packages)
    assert not has_layers(Engine(packages, base="other@sha256:2", cache=[INSTALLED]), packages)
    assert not has_layers(Engine(packages, cache=[]), packages)
    assert not has_layers(Engine(packages, cache=[{**INSTALLED, "Size": 3_000}]), packages)
    assert not has_layers(Engine(packages, cache=[{**INSTALLED, "Description": "something else"}]), packages)
    assert not has_layers(Engine(packages, cache=None), packages)


def append(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        (lambda root: append(root / "Dockerfile"), True),
        (lambda root: append(root / "docker" / "requirements.lock"), True),
        (lambda root: append(next(f for f in sorted((root / "docker" / "venv").rglob("*")) if f.is_file())), True),
        (lambda root: (root / "docker" / "system" / "more").touch(), True),
        (lambda root: (root / "Dockerfile").chmod(0o600), True),
        (lambda root: append(root / "src" / "loradock" / "cli.py"), False),
        (lambda root: append(root / "docker" / "flash_attn"), False),
        (lambda root: append(root / "entrypoint"), False),
    ],
)
def test_only_what_lies_below_loradocks_own_code_decides_the_digest(
    change: Callable[[Path], object], is_other: bool, tmp_path: Path
) -> None:
    root = light_checkout(tmp_path / "loradock")
    before = checkout(root).packages_sha256
    change(root)
    assert (checkout(root).packages_sha256 != before) is is_other
