"""Scratch storage of a build: wheels, compile trees, cache exports, temporary files, records. It may be NFS."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loradock.errors import EnvironmentUnfit, NotWritable, StorageError, UsageError
from loradock.files import lock
from loradock.files.system_errors import storage_error
from loradock.process import python

MARKER = ".loradock-scratch"
LOCK = ".lock"
# Ends 0 when another process holds the lock, 1 when it was free: two processes have to see each other.
TRY_LOCK = (
    "import fcntl, sys\ntry:\n fcntl.flock(open(sys.argv[1]), 6)\nexcept BlockingIOError:\n sys.exit(0)\nsys.exit(1)"
)


@dataclass(frozen=True, kw_only=True)
class Property:
    """One property that was tried on the storage: whether it holds, and what is done instead where it does not."""

    name: str
    is_safe: bool
    seen: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """The directory that the user named, with its rooms."""

    root: Path

    @property
    def wheels(self) -> Path:
        """The locked wheels, of every Python that was built for."""
        return self.root / "wheels"

    @property
    def cache(self) -> Path:
        """BuildKit's exported cache, where the builder can export it."""
        return self.root / "cache"

    @property
    def tmp(self) -> Path:
        """Temporary files; each build makes its own folder and deletes it."""
        return self.root / "tmp"

    @property
    def records(self) -> Path:
        """One JSON and one log a build."""
        return self.root / "records"


def default_scratch() -> Path:
    """Where builds keep their files unless the user says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loradock" / "build"


def opened(root: Path) -> Scratch:
    """The scratch at `root`, made where it does not exist; a foreign folder that holds other files is refused."""
    scratch = Scratch(root=root.absolute())
    try:
        scratch.root.mkdir(parents=True, exist_ok=True)
        names_of_ours = {MARKER, LOCK, "wheels", "cache", "tmp", "records"}
        if not (scratch.root / MARKER).exists():
            foreign = sorted(
                p.name for p in scratch.root.iterdir() if p.name not in names_of_ours and not _is_compile_tree(p)
            )
            if foreign:
                folder = scratch.root / "loradock"
                scratch = Scratch(root=folder)
                folder.mkdir(exist_ok=True)
        for room in (scratch.wheels, scratch.cache, scratch.tmp, scratch.records):
            room.mkdir(exist_ok=True)
        (scratch.root / MARKER).write_text("made by loradock build; `loradock prune` may empty it\n", encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{scratch.root} is a file", hint="name a directory with --scratch") from None
    except PermissionError as error:
        raise NotWritable(
            f"cannot write in the scratch {scratch.root}: {error.strerror}",
            hint="--scratch a directory that this user may write",
        ) from error
    except OSError as error:
        raise storage_error(error, scratch.root) from error
    return scratch


def _is_compile_tree(path: Path) -> bool:
    return path.name.startswith("flash-attn-")


@contextlib.contextmanager
def held(scratch: Scratch) -> Iterator[None]:
    """Hold the scratch for one build; EnvironmentUnfit names the build that holds it. Without locks it only marks."""

    def refusal(holder: str) -> EnvironmentUnfit:
        what = f"another build ({holder}) uses {scratch.root}"
        return EnvironmentUnfit(what, hint="wait for it, or name another directory with --scratch")

    file = scratch.root / LOCK
    with contextlib.ExitStack() as around:
        try:
            around.enter_context(lock.locked(file, refusal=refusal))
        except OSError as error:
            hint = f"ls -l {file}, and remove it"
            raise StorageError(f"{file} cannot be opened: {error.strerror}", hint=hint) from error
        yield


@contextlib.contextmanager
def temporary(scratch: Scratch) -> Iterator[Path]:
    """A private folder below tmp/, deleted at the end whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="build-", dir=scratch.tmp))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def probe(folder: Path) -> list[Property]:
    """Try on `folder` what a build relies on; network storage may lack any of it."""
    tries = (
        ("locks between processes", _locks, "two builds must not use it at once: that is on you"),
        ("rename over an open file", _renames, "records may be seen half-written"),
        ("running programs", _executes, "flash-attn is not compiled here: --flash-attn=build needs another --scratch"),
        ("permissions", _keeps_mode, "others may read the files of a build; no secret is among them"),
        ("ownership", _owns, "files belong to another user (root squash); containers write as this user all the same"),
        ("fsync", _syncs, "a power cut may lose the last wheels; they are checked by hash when used"),
        ("symbolic links", _links, "flash-attn is not compiled here: its environment needs them"),
        ("upper and lower case", _keeps_case, "flash-attn is not compiled here: its sources need them"),
    )
    findings = []
    with tempfile.TemporaryDirectory(prefix="probe-", dir=folder) as name:
        for what, attempt, instead in tries:
            try:
                is_safe, result = attempt(Path(name))
            except OSError as error:
                is_safe, result = False, error.strerror or type(error).__name__
            findings.append(Property(name=what, is_safe=is_safe, seen=result, instead=instead))
    return findings


def can_compile(findings: list[Property]) -> list[Property]:
    """The findings that stand against a compile tree on this storage; empty where none does."""
    return [f for f in findings if not f.is_safe and f.instead.startswith("flash-attn")]


def _locks(folder: Path) -> tuple[bool, str]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lock_state = subprocess.run(python.command("-c", TRY_LOCK, file.name), capture_output=True, check=False)
    return (
        lock_state.returncode == 0,
        "a second process is kept out" if lock_state.returncode == 0 else "a second one gets in",
    )


def _renames(folder: Path) -> tuple[bool, str]:
    old, new = folder / "old", folder / "new"
    old.write_text("old")
    new.write_text("new")
    with old.open() as reader:
        new.replace(old)
        is_safe = reader.read() == "old" and old.read_text() == "new"
    return is_safe, "a reader keeps the old file" if is_safe else "a reader loses the old file"


def _executes(folder: Path) -> tuple[bool, str]:
    script = folder / "program"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o700)
    result = subprocess.run([str(script)], capture_output=True, check=False)
    return (
        result.returncode == 0,
        "a script runs" if result.returncode == 0 else f"a script ends with {result.returncode}",
    )


def _keeps_mode(folder: Path) -> tuple[bool, str]:
    file = folder / "private"
    file.touch()
    file.chmod(0o600)
    mode = file.stat().st_mode & 0o777
    return mode == 0o600, f"0600 is kept as {mode:04o}"


def _owns(folder: Path) -> tuple[bool, str]:
    file = folder / "mine"
    file.touch()
    owner = file.stat().st_uid
    return owner == os.geteuid(), f"what user {os.geteuid()} writes belongs to {owner}"


def _syncs(folder: Path) -> tuple[bool, str]:
    with (folder / "synced").open("wb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    return True, "reported as done"


def _links(folder: Path) -> tuple[bool, str]:
    link = folder / "link"
    link.symlink_to("target")
    return os.readlink(link) == "target", "kept"


def _keeps_case(folder: Path) -> tuple[bool, str]:
    (folder / "Case").touch()
    is_safe = not (folder / "case").exists()
    return is_safe, "told apart" if is_safe else "the same name"
