"""Makes and verifies the lock files: one resolve, every package by hash. `scripts/lock` is its door.

The development lock is resolved first, from all extras and the pins of docker/versions.json; the runtime lock takes
its versions from it, and the locks with DeepSpeed and with lm-eval, which are the runtime lock and more. Each begins
with the digest of what it was made from and of its own body, so that `--check` notices a forgotten run of scripts/lock,
or an edit by hand, without a network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME_EXTRAS = ("train", "image", "k8s", "track")
DEV_EXTRAS = (*RUNTIME_EXTRAS, "dev")
DEV_LOCK = ROOT / "docker" / "requirements-dev.lock"
RUNTIME_LOCK = ROOT / "docker" / "requirements.lock"
DEEPSPEED_EXTRAS = (*RUNTIME_EXTRAS, "deepspeed")
DEEPSPEED_LOCK = ROOT / "docker" / "requirements-deepspeed.lock"
HARNESS_EXTRAS = (*RUNTIME_EXTRAS, "harness")
HARNESS_LOCK = ROOT / "docker" / "requirements-harness.lock"
LOCKS = {
    DEV_LOCK: DEV_EXTRAS,
    RUNTIME_LOCK: RUNTIME_EXTRAS,
    DEEPSPEED_LOCK: DEEPSPEED_EXTRAS,
    HARNESS_LOCK: HARNESS_EXTRAS,
}
RESOLVE = (
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-annotate",
    "--no-header",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--quiet",
)


def pins(extras: tuple[str, ...]) -> dict[str, str]:
    """Package name -> exact version, from docker/versions.json; DeepSpeed's where it is asked for."""
    versions = json.loads((ROOT / "docker" / "versions.json").read_text(encoding="utf-8"))
    optional = {name: versions[name] for name in ("deepspeed",) if name in extras}
    return {name: pin["version"] for name, pin in {**versions["python"], **optional}.items()}


def inputs_digest(extras: tuple[str, ...]) -> str:
    """sha256 (hex) over everything that decides a lock's content: requirements, pins and the way of resolving."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    optional = project["optional-dependencies"]
    decided_by = {
        "python": project["requires-python"],
        "dependencies": sorted(project["dependencies"]),
        "extras": {extra: sorted(optional[extra]) for extra in extras},
        "pins": pins(extras),
        "uv": pyproject["tool"]["uv"],
        "resolve": RESOLVE,
    }
    return hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()


def header(body: str, *, extras: tuple[str, ...]) -> str:
    """The comment lines above a lock's body."""
    return (
        "# Every package by hash, for Linux and Python 3.11-3.13. Made by scripts/lock: do not edit.\n"
        f"# extras: {' '.join(extras)}\n"
        f"# inputs: sha256:{inputs_digest(extras)}\n"
        f"# body: sha256:{hashlib.sha256(body.encode()).hexdigest()}\n"
    )


def resolve(lock: Path, *, extras: tuple[str, ...], constraints: Path, uv: str, upgrade: bool) -> str:
    """The lock's body for `extras`. Versions in the file `lock` are kept where they still fit, unless `upgrade`."""
    command = [uv, "pip", "compile", "pyproject.toml", *RESOLVE, "--output-file", str(lock)]
    command += ["--constraints", str(constraints), *(f"--extra={extra}" for extra in extras)]
    command += ["--upgrade"] * upgrade
    if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(f"error: the extras {', '.join(extras)} cannot be resolved together\nhint: see uv's reason above")
    return lock.read_text(encoding="utf-8")


def make(*, uv: str, upgrade: bool) -> None:
    """Write all locks, or none when one cannot be resolved."""
    bodies: dict[Path, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        made, pinned = Path(folder, "made.txt"), Path(folder, "pins.txt")
        if DEV_LOCK.exists():
            shutil.copy(DEV_LOCK, made)
        for lock, extras in LOCKS.items():
            pinned.write_text("".join(f"{name}=={version}\n" for name, version in pins(extras).items()), "utf-8")
            is_first = lock == DEV_LOCK
            bodies[lock] = resolve(made, extras=extras, constraints=pinned, uv=uv, upgrade=upgrade and is_first)
    for lock, body in bodies.items():
        lock.write_text(header(body, extras=LOCKS[lock]) + body, encoding="utf-8")


def problems() -> list[str]:
    """What is wrong with the locks as they lie there; empty when they are what scripts/lock made last."""
    found: list[str] = []
    for lock, extras in LOCKS.items():
        name = lock.relative_to(ROOT)
        if not lock.exists():
            found.append(f"{name}: missing")
            continue
        lines = lock.read_text(encoding="utf-8").splitlines(keepends=True)
        body = "".join(line for line in lines if not line.startswith("#"))
        given = "".join(line for line in lines if line.startswith("#")).splitlines()
        for expected in header(body, extras=extras).splitlines():
            if expected not in given:
                part = "its packages were edited by hand" if expected.startswith("# body") else "its inputs changed"
                found.append(f"{name}: {part} since scripts/lock made it")
    return found


def main() -> int:
    """Parse the command line; 0 when the locks are (now) right."""
    parser = argparse.ArgumentParser(prog="scripts/lock", description="Remake the lock files.")
    parser.add_argument("--uv", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="only compare; no network")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    options = parser.parse_args()
    if not options.check:
        make(uv=options.uv, upgrade=options.upgrade)
    found = problems()
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if found:
        print("hint: scripts/lock", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
