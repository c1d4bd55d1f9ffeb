"""Every installed file against the lock, the RECORD of its package and, in the image, the manifest.

What is proven: the packages and versions are the lock's; each file has the bytes that its package's RECORD gives; no
other file lies in the environment. With a manifest: each file, RECORD and byte-code too, is as it was at the build.

What is not: that RECORD is the wheel's own (without a manifest, whoever edits a file can edit its RECORD; the lock has
the hash of the wheel, which is not kept); that byte-code was compiled from its source (without a manifest; only the
source's hash in its header is compared); the interpreter, its standard library and the environment's activate scripts;
what PYTHONPATH or a user's own site-packages add; and, run inside the environment that it looks at, that what is
planted there did not run first. From outside (`--venv`, or another image) it executes nothing of that environment.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loradock.machine.lockfile.digests import Digests, digest_files
from loradock.machine.lockfile.findings import Difference, Findings
from loradock.machine.lockfile.installed import Installed, Recorded, files_below, installed_in, read_record
from loradock.machine.lockfile.known import Known
from loradock.machine.lockfile.manifest import NAME as MANIFEST
from loradock.machine.lockfile.manifest import read_manifest
from loradock.machine.lockfile.pins import (
    IMAGE_PREFIX,
    Locked,
    find_lock,
    optional_pins,
    python_of,
    read_lock,
    shares_system_packages,
    site_packages,
)
from loradock.machine.lockfile.unowned import foreign_bytecode, unowned

# Not in the lock and no finding: loradock itself, and pip where `python -m venv` brought it. Their files are checked.
EXPECTED_EXTRA = {"loradock", "pip"}


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was looked at and what was found."""

    prefix: str
    python: str
    lock: str
    lock_sha256: str
    manifest: str | None
    manifest_sha256: str | None
    packages: int
    files: int
    size_bytes: int
    seconds: float
    findings: tuple[Difference, ...]
    notes: tuple[str, ...]


def verify(
    prefix: Path,
    *,
    lock: Path | None = None,
    manifest_sha256: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    known: Known | None = None,
) -> Verified:
    """Check the virtual environment at `prefix`; finds everything at once and executes nothing of it.

    The manifest is the one beside the lock. `manifest_sha256` is what its digest has to be, from the image's label.
    `progress` is called with (bytes hashed, bytes in all). Files that are `known` not to have changed are not read.
    """
    start = time.monotonic()
    prefix = prefix.resolve()
    python, site = python_of(prefix), site_packages(prefix)
    lock = lock or find_lock(prefix)
    locked = read_lock(lock, python_version=python)
    optional = optional_pins(lock)
    findings = Findings(
        prefix=prefix, versions={name: requirement.version for name, requirement in {**optional, **locked}.items()}
    )
    manifest_path = lock.with_name(MANIFEST)
    manifest, digest = _manifest(manifest_path, manifest_sha256, findings)
    installed = installed_in(site)
    _check_names(installed, locked, optional, findings, lock)
    owners = _owners(installed, findings)
    on_disk = set(files_below(prefix))
    requests = _wanted(owners, manifest, on_disk)
    unchanged = known.found(requests) if known else {}
    unread = {path: names for path, names in requests.items() if path not in unchanged}
    read, size_bytes = digest_files(unread, progress=progress)
    digests = {**unchanged, **read}
    if known and read:
        known.keep(digests)
    _check_records(owners, digests, findings)
    _check_manifest(manifest, digests, findings)
    for path, what in unowned(prefix, on_disk, owned=owners.keys(), manifest=manifest.keys()):
        findings.add("unowned", what, file=path)
    for path, what in foreign_bytecode(on_disk - manifest.keys(), sources=on_disk):
        findings.add("byte-code", what, file=path)
    if shares_system_packages(prefix):
        what = "packages outside the environment can be imported in it, and are not covered"
        findings.add("open", what, file=str(prefix / "pyvenv.cfg"))
    return Verified(
        prefix=str(prefix),
        python=python,
        lock=str(lock),
        lock_sha256=hashlib.sha256(lock.read_bytes()).hexdigest(),
        manifest=str(manifest_path) if digest else None,
        manifest_sha256=digest,
        packages=len(installed),
        files=len(digests),
        size_bytes=size_bytes,
        seconds=time.monotonic() - start,
        findings=findings.in_order(),
        notes=_notes(installed, manifest),
    )


def _manifest(path: Path, wanted_sha256: str | None, findings: Findings) -> tuple[dict[str, bytes], str | None]:
    """The manifest, empty where there is none, and its digest; in the image it has to be there."""
    if not path.is_file():
        if findings.prefix == IMAGE_PREFIX or wanted_sha256:
            findings.add("manifest", "the image's manifest is gone", file=str(path))
        return {}, None
    findings.is_image = True
    manifest = read_manifest(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if wanted_sha256 and wanted_sha256.removeprefix("sha256:") != digest:
        findings.add("manifest", f"its digest is sha256:{digest}, not {wanted_sha256}", file=str(path))
    return manifest, digest


def _notes(installed: list[Installed], manifest: dict[str, bytes]) -> tuple[str, ...]:
    notes = [
        f"{distribution.name} is installed from a checkout: its code is not covered"
        for distribution in installed
        if distribution.is_editable
    ]
    if not manifest:
        notes.append("no manifest: a file that was changed together with its RECORD, or byte-code, is not found")
    if os.environ.get("PYTHONPATH"):
        notes.append("PYTHONPATH is set: what it adds is not covered")
    return tuple(notes)


def _check_names(
    installed: list[Installed],
    locked: dict[str, Locked],
    optional: dict[str, Locked],
    findings: Findings,
    lock: Path,
) -> None:
    """Which packages there are, and in which version."""
    by_name: defaultdict[str, list[Installed]] = defaultdict(list)
    for distribution in installed:
        by_name[distribution.name].append(distribution)
    for name, pin in locked.items():
        if name not in by_name:
            findings.add("missing", f"{name} {pin.version} is not installed", file=str(lock), package=name)
    for name, all_of_it in by_name.items():
        pin = locked.get(name) or optional.get(name)
        for distribution in all_of_it:
            if pin is None and name not in EXPECTED_EXTRA:
                what = f"{name} {distribution.version} is not in the lock"
                findings.add("extra", what, file=str(distribution.folder), package=name)
            elif pin is not None and not _same_version(distribution.version, pin.version):
                what = f"{name} {distribution.version} instead of {pin.version}"
                findings.add("wrong-version", what, file=str(distribution.folder), package=name)
        for distribution in all_of_it[1:]:
            what = f"{name} is installed {len(all_of_it)} times"
            findings.add("duplicate", what, file=str(distribution.folder), package=name)


def _same_version(first: str, second: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(first) == Version(second)
    except InvalidVersion:
        return first == second


def _owners(installed: list[Installed], findings: Findings) -> dict[str, list[tuple[str, Recorded]]]:
    """{path: (package, line of its RECORD)} for every file that a RECORD names."""
    owners: defaultdict[str, list[tuple[str, Recorded]]] = defaultdict(list)
    inside = f"{findings.prefix}{os.sep}"
    for distribution in installed:
        record = str(distribution.folder / "RECORD")
        lines, faults = read_record(distribution.folder)
        for fault in (*distribution.faults, *faults):
            findings.add("bad-record", fault, file=record, package=distribution.name)
        if lines is None:
            findings.add(
                "no-record", f"{distribution.name} has no RECORD of its files", file=record, package=distribution.name
            )
        for line in lines or ():
            if line.path.startswith(inside):
                owners[line.path].append((distribution.name, line))
            else:
                what = f"RECORD names {line.path}, outside the environment"
                findings.add("outside", what, file=record, package=distribution.name)
    return dict(owners)


def _wanted(
    owners: dict[str, list[tuple[str, Recorded]]], manifest: dict[str, bytes], on_disk: set[str]
) -> dict[str, set[str]]:
    """{path: algorithms}: what has to be hashed."""
    requests: defaultdict[str, set[str]] = defaultdict(set)
    for path, lines in owners.items():
        algorithms = {line.algorithm for _, line in lines if line.algorithm}
        if algorithms:
            requests[path] |= algorithms
    for path in manifest:
        requests[path].add("sha256")
    return {path: algorithms for path, algorithms in requests.items() if path in on_disk or os.path.lexists(path)}


def _check_records(
    owners: dict[str, list[tuple[str, Recorded]]], digests: dict[str, Digests], findings: Findings
) -> None:
    """Each file has the bytes that each RECORD naming it says."""
    for path, lines in owners.items():
        hashed = [(package, line) for package, line in lines if line.algorithm]
        if not hashed:
            continue
        digest = digests.get(path)
        if digest is None:
            findings.add("absent", f"a file of {hashed[0][0]} is gone", file=path, package=hashed[0][0])
        elif isinstance(digest, str):
            findings.add("unreadable", f"a file of {hashed[0][0]}: {digest}", file=path, package=hashed[0][0])
        else:
            differing = [package for package, line in hashed if digest[str(line.algorithm)] != line.digest]
            kind = "tampered" if len(differing) == len(hashed) else "overwritten"
            for package in differing:
                findings.add(kind, f"differs from the RECORD of {package}", file=path, package=package)


def _check_manifest(manifest: dict[str, bytes], digests: dict[str, Digests], findings: Findings) -> None:
    """Each file is as it was when the image was built; what a RECORD has shown already is not said twice."""
    reported = {finding.file for finding in findings.found}
    for path, digest in manifest.items():
        digest_found = digests.get(path)
        if path in reported:
            continue
        if digest_found is None:
            findings.add("absent", "a file of the manifest is gone", file=path)
        elif isinstance(digest_found, str):
            findings.add("unreadable", digest_found, file=path)
        elif digest_found["sha256"] != digest:
            findings.add("tampered", "differs from the manifest", file=path)
