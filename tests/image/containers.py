"""Starting the full image as a strict cluster would, and waiting for what happens inside."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

TIGHT = {
    "read_only": True,
    "tmpfs": {"/tmp": "rw,exec,nosuid,nodev"},
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "network_mode": "none",
}


class Ended:
    """A container that has ended: its exit code and all that it said."""

    def __init__(self, container: Container) -> None:
        self.code = int(container.wait(timeout=600)["StatusCode"])
        self.text = container.logs().decode()


def start(engine: DockerClient, image: str, started: list[Container], *args: str, **options: object) -> Container:
    """Start the image with `args`, and note the container in `started`, which a fixture removes."""
    container = engine.containers.run(image, list(args), detach=True, **{**TIGHT, **options})  # pyright: ignore
    started.append(container)
    return container


def wait_for(container: Container, happens: Callable[[], object], *, seconds: float = 300) -> None:
    """Wait until `happens` gives something true; fails with the container's words where it ends before, or too late."""
    deadline = time.monotonic() + seconds
    while not happens():
        container.reload()
        assert container.status in {"created", "running"}, container.logs().decode()
        assert time.monotonic() < deadline, container.logs().decode()
        time.sleep(0.1)


def inside(container: Container, *args: str) -> bytes:
    """What a command prints that is run in a container, by the container's own user; fails where the command does."""
    code, output = container.exec_run(list(args))
    assert code == 0, output
    assert isinstance(output, bytes)
    return output
