"""The lock of an environment: where it lies, and what it asks of one Python."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from loradock.errors import EnvironmentUnfit, InputMissing, Problem
from loradock.files import regular
from loradock.text.terminal import first_line

IMAGE_LOCK = Path("/opt/loradock/lock/requirements.lock")
IMAGE_PREFIX = Path("/opt/loradock/venv")
CHECKOUT_LOCKS = Path(__file__).parents[4] / "docker"
OPTIONAL = ("flash-attn",)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class Locked:
    """One package of the lock; `hashes` are the SHA-256 of the files (wheels) that may be installed for it."""

    name: str
    version: str
    hashes: tuple[str, ...] = ()


def find_lock(prefix: Path) -> Path:
    """The lock that the environment at `prefix` was made from; InputMissing where there is none.

    The image's environment has its own beside it. Any other is taken for one of a checkout: its stamp says whether it
    was made for development, whose lock holds all of the one for run time.
    """
    if prefix == IMAGE_PREFIX:
        lock = IMAGE_LOCK
    else:
        name = "requirements-dev.lock" if _is_for_development(prefix) else "requirements.lock"
        lock = CHECKOUT_LOCKS / name
    if not lock.is_file():
        raise InputMissing(f"no lock for {prefix}: {lock} does not exist", hint="--lock docker/requirements.lock")
    return lock


def _is_for_development(prefix: Path) -> bool:
    try:
        with (prefix / "loradock.stamp").open(encoding="utf-8") as stream:
            return stream.readline().strip() == "dev"
    except OSError:
        return False


def read_lock(path: Path, *, python_version: str) -> dict[str, Locked]:
    """{normalised name: package} for the lines whose marker holds for this machine and that Python (as `3.12.3`)."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    environment = {"python_full_version": python_version, "python_version": ".".join(python_version.split(".")[:2])}
    locked: dict[str, Locked] = {}
    problems: list[Problem] = []
    for line, text, hashes in _entries(path):
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            problems.append(Problem(what=first_line(error), file=str(path), line=line))
            continue
        name = canonicalize_name(requirement.name)
        pins = [specifier.version for specifier in requirement.specifier if specifier.operator == "=="]
        if len(pins) != 1 or not hashes:
            problems.append(Problem(what=f"{name} has no exact version or no hash", file=str(path), line=line))
        elif requirement.marker is None or requirement.marker.evaluate(environment):
            if name in locked:
                problems.append(Problem(what=f"{name} is named twice for this Python", file=str(path), line=line))
            locked[name] = Locked(name=name, version=pins[0], hashes=hashes)
    if problems or not locked:
        what = f"{path} is not a lock" if locked else f"{path} names no package for Python {python_version}"
        raise EnvironmentUnfit(what, hint="scripts/lock makes it again", problems=problems)
    return locked


def _entries(path: Path) -> list[tuple[int, str, tuple[str, ...]]]:
    """(line number, requirement, hashes) of each package; a backslash at a line's end continues it."""
    try:
        lines = regular.read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputMissing(f"cannot read {path}: {error}", hint="--lock docker/requirements.lock") from error
    entries: list[tuple[int, str, tuple[str, ...]]] = []
    start, text = 0, ""
    for number, line in enumerate(lines, 1):
        if not text and (not line.strip() or line.startswith("#")):
            continue
        start = start if text else number
        text += " " + line.removesuffix("\\")
        if not line.endswith("\\"):
            entries.append((start, HASH.sub("", text).strip(), tuple(HASH.findall(text))))
            text = ""
    if text:
        entries.append((start, HASH.sub("", text).strip(), tuple(HASH.findall(text))))
    return entries


def optional_pins(lock: Path) -> dict[str, Locked]:
    """What versions.json beside the lock pins without the lock holding it: packages that an image may have."""
    try:
        pins = json.loads(lock.with_name("versions.json").read_text(encoding="utf-8"))
    except OSError:
        return {}
    except ValueError as error:
        raise EnvironmentUnfit(
            f"{lock.with_name('versions.json')} is not JSON: {error}", hint="git checkout docker/versions.json"
        ) from error
    return {
        name: Locked(name=name, version=pins[name]["version"], hashes=(pins[name]["sha256"],))
        for name in OPTIONAL
        if name in pins
    }


def python_of(prefix: Path) -> str:
    """The version of the Python of a virtual environment, as `3.12.3`; EnvironmentUnfit where `prefix` is none."""
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(
            f"{prefix} is not a virtual environment: {error.strerror} for pyvenv.cfg",
            hint="loradock lock verify --venv .venv",
        ) from error
    match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", text, flags=re.MULTILINE)
    if not match:
        raise EnvironmentUnfit(f"{prefix}/pyvenv.cfg names no Python version", hint="make the environment again")
    return match[1]


def shares_system_packages(prefix: Path) -> bool:
    """True where packages outside the environment can be imported in it."""
    text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8")
    return re.search(r"^include-system-site-packages\s*=\s*true", text, flags=re.MULTILINE | re.IGNORECASE) is not None


def site_packages(prefix: Path) -> Path:
    """The one directory of an environment that packages are installed in; EnvironmentUnfit where that is not so."""
    folders = sorted(path for path in prefix.glob("lib/python3.*/site-packages") if os.path.isdir(path))
    if len(folders) != 1:
        raise EnvironmentUnfit(
            f"{prefix} has {len(folders)} directories lib/python3.*/site-packages instead of one",
            hint="make the environment again",
        )
    return folders[0]
