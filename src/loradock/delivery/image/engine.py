"""The container engine of this machine, through the docker SDK, and the command line that drives BuildKit."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loradock.errors import EnvironmentUnfit, InputMissing

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

DEFAULT_SOCKET = "unix:///var/run/docker.sock"
CLIENT_WITHOUT_BUILDKIT = 23  # from this release on the client leaves BuildKit to the buildx plugin


def connect(*, timeout_seconds: int = 600) -> DockerClient:
    """The engine that DOCKER_HOST (or the default socket) names; EnvironmentUnfit where none answers."""
    import docker
    from docker.errors import DockerException

    where = os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET
    try:
        _knock(where)
        client = docker.from_env(timeout=timeout_seconds)
    except (OSError, DockerException) as error:
        raise EnvironmentUnfit(
            f"no container engine answers at {where}: {error}",
            hint="start it (systemctl start docker), or name one: export DOCKER_HOST=unix:///path/docker.sock",
        ) from error
    return client


def _knock(where: str) -> None:
    """Raise OSError where nobody listens: the SDK would leave its socket open then."""
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(where.removeprefix("unix://"))


def image_named(client: DockerClient, reference: str) -> Image:
    """A local image; InputMissing where the engine has none of that name."""
    from docker.errors import ImageNotFound

    try:
        return client.images.get(reference)
    except ImageNotFound as error:
        raise InputMissing(f"the engine has no image {reference}", hint=f"loradock build --tag {reference}") from error


@dataclass(frozen=True, kw_only=True)
class Builder:
    """What drives BuildKit: the command in front of a build's arguments, and whether it can export its cache."""

    command: tuple[str, ...]
    name: str
    can_export_cache: bool
    why: str

    def environment(self) -> dict[str, str]:
        """What the command needs in its environment, so that it talks to the engine the SDK talks to."""
        return {"DOCKER_BUILDKIT": "1", "DOCKER_HOST": os.environ.get("DOCKER_HOST", DEFAULT_SOCKET)}


def builder() -> Builder:
    """buildx where the plugin is installed, otherwise the client's own BuildKit; LORADOCK_DOCKER names another client.

    A buildx builder in a container of its own is used only where it shares this machine's network: the wheels come
    over the loopback.
    """
    client = os.environ.get("LORADOCK_DOCKER") or shutil.which("docker")
    if client is None:
        raise EnvironmentUnfit("the docker command line is not installed", hint="apt-get install docker.io")
    release = _said(client, "version", "--format", "{{.Client.Version}}")
    buildx = _said(client, "buildx", "version")
    if not buildx:
        if int((re.match(r"\d+", release) or [CLIENT_WITHOUT_BUILDKIT])[0]) >= CLIENT_WITHOUT_BUILDKIT:
            raise EnvironmentUnfit(
                f"{client} {release} cannot build with BuildKit: its buildx plugin is missing",
                hint="apt-get install docker-buildx, or name a client that can: export LORADOCK_DOCKER=/usr/bin/docker",
            )
        why = "this client has no buildx; the engine keeps the cache of its builds itself"
        return Builder(command=(client, "build"), name=f"docker {release}", can_export_cache=False, why=why)
    inspected = _said(client, "buildx", "inspect")
    driver = (re.search(r"^Driver:\s*(\S+)", inspected, re.MULTILINE) or ["", "docker"])[1]
    name = f"buildx {(re.search(r'v?[0-9]+[.][0-9.]+', buildx) or [''])[0]}, driver "
    build = (client, "buildx", "build", "--load")
    if driver == "docker-container" and re.search(r'network="?host', inspected):
        allowed = (*build, "--allow", "network.host")
        return Builder(command=allowed, name=name + driver, can_export_cache=True, why=f"driver {driver}")
    why = f"builder with the driver {driver}; one that can: docker buildx create --use --driver-opt network=host"
    return Builder(command=(*build, "--builder", "default"), name=name + "docker", can_export_cache=False, why=why)


def _said(*command: str) -> str:
    """What a short command prints; empty where it fails. Without a server `docker version` still names the client."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip() if result.returncode == 0 or "version" in command[1:2] else ""
