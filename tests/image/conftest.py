"""The engine and the images that the tests of the image use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loradock.errors import EnvironmentUnfit
from loradock.image.engine import connect

if TYPE_CHECKING:
    from docker import DockerClient

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    """The engine of this machine; .ci/run starts one of its own."""
    try:
        client = connect()
    except EnvironmentUnfit:
        pytest.skip("no container engine")
    yield client
    client.close()


@pytest.fixture(scope="session")
def base_image(engine: DockerClient) -> str:
    """The base to build on: LORADOCK_TEST_BASE (a stand-in where no registry can be reached) or the pinned one."""
    pin = json.loads((ROOT / "docker" / "versions.json").read_text(encoding="utf-8"))["images"]["base"]
    name = os.environ.get("LORADOCK_TEST_BASE", f"{pin['reference']}@{pin['digest']}")
    if not engine.images.list(name):
        pytest.skip(f"no base image: docker pull {name}, or name one in LORADOCK_TEST_BASE")
    return name
