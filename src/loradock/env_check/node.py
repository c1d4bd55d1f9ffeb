"""One node as others are compared with it: its name, what it runs, and the GPUs it runs on."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass, fields

from loradock import __version__
from loradock.env_check.base import Intent
from loradock.facts import IMAGE_DIGEST, Facts
from loradock.machine import Host


@dataclass(frozen=True, kw_only=True)
class Node:
    """Its name, and all that should be the same on every node of a run; None where it is not known."""

    name: str
    driver: str | None = None
    image_digest: str | None = None
    lock_sha256: str | None = None
    loradock: str | None = None
    commit: str | None = None
    config_sha256: str | None = None
    kernel: str | None = None
    gpus: tuple[str, ...] = ()


SAME = tuple(field.name for field in fields(Node) if field.name != "name")


def node(host: Host, facts: Facts, plan: Intent) -> Node:
    """This machine. The digest of its image is known where whoever started the container handed it in."""
    settings = plan.config and json.dumps(plan.config.model_dump(mode="json"), sort_keys=True)
    return Node(
        name=(host.read_text("/proc/sys/kernel/hostname") or platform.node()).strip() or "?",
        driver=facts.driver,
        image_digest=host.environ.get(IMAGE_DIGEST),
        lock_sha256=facts.lock_sha256,
        loradock=__version__,
        commit=facts.git_commit,
        config_sha256=hashlib.sha256(settings.encode()).hexdigest() if settings else None,
        kernel=facts.platform,
        gpus=tuple(gpu.name for gpu in facts.gpus),
    )
