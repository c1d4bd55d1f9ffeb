"""The engine and the images that the tests of the image use."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from faults.conftest import trial

from loradock.delivery.image.engine import connect
from loradock.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

__all__ = ["trial"]
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


@pytest.fixture(scope="session")
def canary() -> str:
    """A secret that the full image's build is given. The same in each session: a step may come from an earlier one."""
    return "canary-5f0c1d5e4b7a4b0e9d0f2c7a8e6b3d19"


@pytest.fixture(scope="session")
def record(
    engine: DockerClient, base_image: str, canary: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The record of a real build of the full image, from the real lock, on the machine's own scratch."""
    scratch = os.environ.get("LORADOCK_TEST_SCRATCH")
    folder = Path(scratch) if scratch else tmp_path_factory.mktemp("scratch")
    folder.mkdir(parents=True, exist_ok=True)
    conf = tmp_path_factory.mktemp("secrets") / "pip.conf"
    conf.write_text(f"# {canary}\n[global]\ntimeout = 60\n", encoding="utf-8")
    command = [sys.executable, "-m", "loradock", "build", "--json", "--tag", "loradock:test-full"]
    command += ["--base-image", base_image, "--scratch", str(folder), "--pip-conf", str(conf)]
    bundle = conf.with_name("ca.pem")
    trusted = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    bundle.write_text(f"# {canary}\n{Path(trusted).read_text(encoding='utf-8') if trusted else ''}", encoding="utf-8")
    command += ["--ca", str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def image(record: dict[str, Any]) -> str:
    """The tag of the full image."""
    return record["tag"]


@pytest.fixture(scope="session")
def build_log(record: dict[str, Any]) -> Path:
    """All that the build of the full image said."""
    return Path(record["log"])


@pytest.fixture
def started() -> Iterator[list[Container]]:
    """The containers that a test starts; removed afterwards."""
    containers: list[Container] = []
    yield containers
    for container in containers:
        container.remove(force=True)
