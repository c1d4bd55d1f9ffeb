"""The search for secrets finds each planted leak, and nothing where a build secret was used as it should be."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from image.leaks import CHUNK_BYTES, scan

if TYPE_CHECKING:
    from docker import DockerClient

pytestmark = pytest.mark.thin(2)

CANARY = f"canary-{uuid.uuid4().hex}"
USED = 'RUN --mount=type=secret,id=key sh -c "[ -s /run/secrets/key ] && sha256sum /run/secrets/key >/dev/null"'
TAKE = "RUN --mount=type=secret,id=key"
# What is planted, and where it has to be found. All of it lies in one image: each place is one of its own.
PLANTED = {
    "a file": (f"{TAKE} cp /run/secrets/key /plain", "plain"),
    "a file that a later layer deletes": (f"{TAKE} cp /run/secrets/key /deleted\nRUN rm /deleted", "deleted"),
    "base64": (f"{TAKE} (printf x; cat /run/secrets/key) | base64 -w 0 >/base64", "base64"),
    "a gzip file": (f"{TAKE} gzip -c /run/secrets/key >/packed.gz", "packed.gz (unpacked)"),
    "a file's name": (f'{TAKE} touch "/$(cat /run/secrets/key)"', "(its name or attributes)"),
    "two chunks": (f"{TAKE} (head -c {CHUNK_BYTES - 20} /dev/zero; cat /run/secrets/key; echo) >/long", "long"),
    "the environment or a label": (f"ENV KEY={CANARY}", "the configuration"),
    "the history": (f"ARG KEY={CANARY}\nRUN true", "the history"),
    "the log": (f"{TAKE} cat /run/secrets/key", "the log"),
}


@pytest.fixture(scope="module")
def build(
    engine: DockerClient, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], tuple[str, str]]]:
    """Build with the canary as a secret; returns the image's name and the log."""
    tmp_path = tmp_path_factory.mktemp("leaks")
    names: list[str] = []
    (tmp_path / "key").write_text(CANARY)

    def run(instructions: str) -> tuple[str, str]:
        name = f"loradock-test-{uuid.uuid4().hex[:10]}"
        names.append(name)
        # A secret is no part of a step's cache key: without this line the last run's steps, and secret, come back.
        (tmp_path / "Dockerfile").write_text(f"FROM {base_image}\nENV RUN={name}\n{instructions}\n")
        client = os.environ.get("LORADOCK_DOCKER", "/usr/bin/docker")
        done = subprocess.run(
            [client, "build", "--network=none", "--progress=plain", "--secret", "id=key,src=key", "-t", name, "."],
            cwd=tmp_path, env={**os.environ, "DOCKER_BUILDKIT": "1"}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return name, done.stdout + done.stderr

    yield run
    for name in names:
        with contextlib.suppress(Exception):
            engine.images.remove(name)


@pytest.fixture(scope="module")
def hits(build: Callable[[str], tuple[str, str]]) -> list[str]:
    """What the scan finds in an image with every leak."""
    image, log = build("\n".join(instructions for instructions, _ in PLANTED.values()))
    return scan(image, [CANARY], log)


def test_a_secret_that_is_only_used_is_nowhere(build: Callable[[str], tuple[str, str]]) -> None:
    image, log = build(USED)
    assert scan(image, [CANARY], log) == []


@pytest.mark.parametrize("leak", PLANTED)
def test_a_planted_leak_is_found(hits: list[str], leak: str) -> None:
    assert any(hit.endswith(PLANTED[leak][1]) for hit in hits), hits
