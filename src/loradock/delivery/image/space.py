"""What a build needs against what is free, in bytes and inodes, where the engine and the scratch really keep files.

Needs that end on the same filesystem add up. The figures are those of docker/sizes.json, measured from the wheels.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loradock.delivery.image.wheels import locked_names, project_of
from loradock.errors import DiskFull, EnvironmentUnfit
from loradock.text.amounts import free_text, needed_text

UNKNOWN_PACKAGE = {"wheel_bytes": 5_000_000, "installed_bytes": 20_000_000, "files": 500}
TEMPORARY = {"bytes": 100_000_000, "files": 500}
MARGIN = 1.05


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one part of a build writes to `path` at most."""

    what: str
    path: Path
    bytes: int
    files: int


@dataclass(frozen=True, kw_only=True)
class Room:
    """One filesystem: what is free on it, and the needs that end there. `free_files` is None where it has no limit."""

    mount: Path
    free_bytes: int
    free_files: int | None
    needs: tuple[Need, ...]

    @property
    def need_bytes(self) -> int:
        """All needs together, with a margin."""
        return int(sum(need.bytes for need in self.needs) * MARGIN)

    @property
    def need_files(self) -> int:
        """All needs together, with a margin."""
        return int(sum(need.files for need in self.needs) * MARGIN)

    @property
    def is_enough(self) -> bool:
        """True where both bytes and inodes suffice."""
        return self.need_bytes <= self.free_bytes and (self.free_files is None or self.need_files <= self.free_files)

    def as_json(self) -> dict[str, Any]:
        """For the record and for --json."""
        needs = [{**asdict(need), "path": str(need.path)} for need in self.needs]
        return {
            "mount": str(self.mount),
            "free_bytes": self.free_bytes,
            "free_files": self.free_files,
            "need_bytes": self.need_bytes,
            "need_files": self.need_files,
            "is_enough": self.is_enough,
            "needs": needs,
        }


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the engine keeps images and temporary files, on this machine."""

    root: Path
    tmp: Path


def places(info: dict[str, Any]) -> Places:
    """From the engine's `info`; EnvironmentUnfit where its root is not on this machine."""
    root = Path(info["DockerRootDir"])
    if not _exists(root):
        raise EnvironmentUnfit(
            f"the engine keeps its files in {root}, which is not on this machine: its free space cannot be measured, "
            "and it would not see the scratch",
            hint="run loradock build on the engine's machine, or there: docker build -t loradock .",
        )
    return Places(root=root, tmp=_engine_tmp(root))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return True


def _engine_tmp(root: Path) -> Path:
    """DOCKER_TMPDIR of the engine that has this root, where its environment may be read; otherwise ROOT/tmp."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() != "dockerd":
                continue
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            entries = (process / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        folder = next((e.partition("=")[2] for e in entries if e.startswith("DOCKER_TMPDIR=")), "")
        if folder and (str(root) in command or "--data-root" not in command):
            return Path(folder)
    return root / "tmp"


def existing(path: Path) -> Path:
    """The nearest existing folder at or above a path that may not exist yet."""
    path = path.absolute()
    while not _exists(path):
        path = path.parent
    return path.resolve()


def rooms(needs: Iterable[Need]) -> list[Room]:
    """The needs by filesystem, with what is free for this user there now."""
    by_device: dict[int, list[Need]] = {}
    for need in needs:
        by_device.setdefault(_stat(need.path).st_dev, []).append(need)
    return [_room(here) for here in by_device.values()]


def _stat(path: Path) -> os.stat_result:
    """The stat of the nearest folder that this user may look at."""
    path = existing(path)
    while True:
        try:
            return path.stat()
        except PermissionError:
            path = path.parent


def _room(needs: Sequence[Need]) -> Room:
    path = existing(needs[0].path)
    free = os.statvfs(path)
    while not path.is_mount():
        path = path.parent
    return Room(
        mount=path,
        free_bytes=free.f_bavail * free.f_frsize,
        free_files=free.f_favail if free.f_files else None,
        needs=tuple(needs),
    )


def refuse_where_too_little(room_list: Sequence[Room], *, hint: str) -> None:
    """DiskFull with need and have of every filesystem that has too little."""
    short = [room for room in room_list if not room.is_enough]
    if short:
        what = "; ".join(_short_of(room) for room in short)
        raise DiskFull(f"too little space to build: {what}", hint=hint)


def _short_of(room: Room) -> str:
    if room.need_bytes > room.free_bytes:
        return f"{room.mount} has {free_text(room.free_bytes)} free, the build needs {needed_text(room.need_bytes)}"
    return f"{room.mount} has {room.free_files:,} inodes free, the build needs {room.need_files:,}"


class Sizes:
    """docker/sizes.json, for the packages that a lock names."""

    def __init__(self, file: Path, *, lock: str) -> None:
        known = json.loads(file.read_text(encoding="utf-8"))
        self.stages: dict[str, dict[str, int]] = known["stages"]
        self.versions = locked_names(lock)
        self.packages = {name: known["packages"].get(_normal(name), UNKNOWN_PACKAGE) for name in self.versions}

    def total(self, key: str) -> int:
        """The sum of `wheel_bytes`, `installed_bytes` or `files` over all packages."""
        return sum(int(package[key]) for package in self.packages.values())

    def missing_wheels(self, folder: Path) -> list[str]:
        """The locked packages of which the folder holds no wheel of the locked version."""
        projects = {project_of(path.name) for path in folder.glob("*.whl")}
        return [name for name, version in self.versions.items() if (_normal(name), version) not in projects]

    def needs(
        self,
        where: Places,
        *,
        scratch: Path,
        has_layers: bool,
        has_base: bool,
        compiles: bool,
        has_devel: bool,
        variant: str = "standard",
    ) -> list[Need]:
        """What this build writes at most: less where images, layers or wheels are there already."""
        parts = [("the base image", "base")] * (not has_base) + [("loradock itself", "loradock")]
        parts += [("system packages", "system"), ("pip", "wheels")] * (not has_layers)
        if variant != "standard" and not has_layers:
            parts += [(f"system packages of {variant}", f"system-{variant}")]
        if compiles:
            parts += [("the development base image", "devel")] * (not has_devel)
            parts += [("the flash-attn toolchain", "flash-attn-toolchain")]
        needs = [self._stage(what, where.root, key) for what, key in parts]
        if not has_layers:
            installed, files = self.total("installed_bytes"), self.total("files")
            needs.append(Need(what="the packages, installed", path=where.root, bytes=installed, files=files))
            unpacked = self.total("wheel_bytes")
            needs.append(
                Need(what="their wheels, until installed", path=where.root, bytes=unpacked, files=len(self.packages))
            )
        missing = self.missing_wheels(scratch / "wheels")
        wheel_bytes = sum(int(self.packages[name]["wheel_bytes"]) for name in missing)
        needs.append(Need(what="wheels to fetch", path=scratch, bytes=wheel_bytes, files=len(missing)))
        if compiles:
            needs.append(self._stage("the flash-attn compile tree", scratch, "flash-attn-tree"))
        needs.append(Need(what="temporary files", path=where.tmp, **TEMPORARY))
        return needs

    def _stage(self, what: str, path: Path, key: str) -> Need:
        stage = self.stages[key]
        return Need(what=what, path=path, bytes=stage["bytes"], files=stage["files"])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
