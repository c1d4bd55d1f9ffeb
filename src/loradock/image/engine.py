"""The container engine of this machine, through the docker SDK, and the command line that drives BuildKit."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from loradock.errors import EnvironmentUnfit, InputMissing

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image


def connect(*, timeout_seconds: int = 600) -> DockerClient:
    """The engine that DOCKER_HOST (or the default socket) names; EnvironmentUnfit where none answers."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=timeout_seconds)
        client.ping()
    except DockerException as error:
        where = os.environ.get("DOCKER_HOST", "the default socket")
        raise EnvironmentUnfit(
            f"no container engine answers at {where}: {error}",
            hint="start it (systemctl start docker), or name one: export DOCKER_HOST=unix:///path/docker.sock",
        ) from error
    return client


def image_named(client: DockerClient, reference: str) -> Image:
    """A local image; InputMissing where the engine has none of that name."""
    from docker.errors import ImageNotFound

    try:
        return client.images.get(reference)
    except ImageNotFound as error:
        raise InputMissing(
            f"the engine has no image {reference}", hint=f"loradock build --tag {reference}"
        ) from error


def build_command() -> list[str]:
    """The command in front of a build's arguments: buildx where it is installed, otherwise the client's own BuildKit.

    The client needs DOCKER_BUILDKIT=1 in its environment for the second. LORADOCK_DOCKER names another client.
    """
    client = os.environ.get("LORADOCK_DOCKER") or shutil.which("docker")
    if client is None:
        raise EnvironmentUnfit("the docker command line is not installed", hint="apt-get install docker.io")
    return [client, "build"]
