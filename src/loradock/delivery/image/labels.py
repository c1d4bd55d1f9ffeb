"""The labels by which loradock knows its own images and containers. `loradock prune` touches nothing without them."""

from __future__ import annotations

IMAGE = "loradock.delivery.image"
LOCK = "loradock.lock"
PACKAGES = "loradock.machine.lockfile"
BASE_VERIFIED = "loradock.base.verified"
CONTAINER = "loradock.container"
VERSION = "org.opencontainers.image.version"
REVISION = "org.opencontainers.image.revision"
