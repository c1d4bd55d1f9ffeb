"""What a build is asked for, and what it is made from: the options, the checkout, its lock, its pins, its revision."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loradock
from loradock.errors import InputMissing, UsageError

VARIANTS = {"standard": "requirements.lock", "deepspeed": "requirements-deepspeed.lock"}
"""What an image is for -> its lock."""
SOURCES = ("Dockerfile", "entrypoint", "docker", "src", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True, kw_only=True)
class BuildAsk:
    """The options of `loradock build`. `flash_attn` is off, build, or wheel:PATH; None means the pinned default.

    `variant` is a key of VARIANTS.
    """

    scratch: Path
    context: Path | None = None
    tag: str | None = None
    variant: str = "standard"
    base_image: str | None = None
    devel_image: str | None = None
    flash_attn: str = "off"
    flash_attn_archs: str = "80;90"
    max_jobs: int | None = None
    platform: str | None = None
    pip_conf: Path | None = None
    ca: Path | None = None
    sbom: Path | None = None
    pull: bool = False
    push: bool = False
    no_cache: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, before anything is touched."""
        kind, _, wheel = self.flash_attn.partition(":")
        if kind not in {"off", "build", "wheel"} or (kind == "wheel") != bool(wheel):
            raise UsageError(
                f"--flash-attn {self.flash_attn} is none of off, build, wheel:PATH", hint="--flash-attn off"
            )
        files = (("--flash-attn", Path(wheel) if wheel else None), ("--pip-conf", self.pip_conf), ("--ca", self.ca))
        for option, path in files:
            if path is not None and not path.is_file():
                raise InputMissing(f"{option}: no such file: {path}", hint=f"name a file with {option}")
        if wheel and not wheel.endswith(".whl"):
            raise UsageError(f"--flash-attn: {wheel} is not a wheel", hint="--flash-attn wheel:PATH.whl")

    @property
    def wheel(self) -> Path | None:
        """The flash-attn wheel that the user named."""
        kind, _, path = self.flash_attn.partition(":")
        return Path(path).absolute() if kind == "wheel" else None

    @property
    def compiles(self) -> bool:
        """True where flash-attn is to be compiled."""
        return self.flash_attn == "build"


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """The folder that the image is built from."""

    root: Path
    lock: str
    lock_sha256: str
    versions: dict[str, Any]
    revision: str
    variant: str = "standard"

    @property
    def lock_file(self) -> Path:
        """The lock with hashes."""
        return self.root / "docker" / VARIANTS[self.variant]

    @property
    def packages_sha256(self) -> str:
        """The digest (hex) of all that decides the layers below loradock's own: two builds that share it share them."""
        digest = hashlib.sha256()
        folders = (self.root / "docker" / "system", self.root / "docker" / "venv")
        for file in (self.root / "Dockerfile", self.lock_file, *(f for d in folders for f in sorted(d.rglob("*")))):
            if file.is_file():
                digest.update(f"{file.relative_to(self.root)}\0{file.stat().st_mode:o}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
        return digest.hexdigest()

    @property
    def sizes_file(self) -> Path:
        """The measured sizes of what is locked."""
        return self.root / "docker" / "sizes.json"

    def pinned(self, image: str) -> str:
        """The reference with digest that versions.json pins for `base` or `devel`."""
        pin = self.versions["images"][image]
        return f"{pin['reference']}@{pin['digest']}"

    def is_verified(self, base: str) -> bool:
        """True for the pinned base, once its digest was confirmed against the registry."""
        return base == self.pinned("base") and bool(self.versions["images"]["base"].get("verified"))


def checkout(folder: Path | None, *, variant: str = "standard") -> Checkout:
    """The checkout at `folder`, or the one that this loradock runs from, or the working directory."""
    candidates = [folder] if folder else [Path(loradock.__file__).parents[2], Path.cwd()]
    root = next((path.absolute() for path in candidates if (path / "Dockerfile").is_file()), None)
    if root is None:
        raise InputMissing(
            f"there is no Dockerfile in {' or '.join(str(path) for path in candidates)}",
            hint="loradock build --context PATH-OF-THE-CHECKOUT",
        )
    try:
        lock = (root / "docker" / VARIANTS[variant]).read_bytes()
        versions = json.loads((root / "docker" / "versions.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise InputMissing(f"{root} is not a checkout of loradock: {error}", hint="--context PATH") from error
    return Checkout(
        root=root,
        lock=lock.decode(),
        lock_sha256=hashlib.sha256(lock).hexdigest(),
        versions=versions,
        revision=_revision(root),
        variant=variant,
    )


def _revision(root: Path) -> str:
    """The commit of the checkout, with +dirty where what the image is made from was changed since."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(root), *arguments]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return result.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if not commit or git("ls-files", "--error-unmatch", "Dockerfile") is None:
        return "unknown"
    return commit + ("+dirty" if git("status", "--porcelain", "--", *SOURCES) else "")
