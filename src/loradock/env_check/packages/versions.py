"""Versions: what is installed against the lock, and against what the packages require of one another."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.remedies import ANOTHER_IMAGE, reinstall
from loradock.errors import InputMissing
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import Distribution
from loradock.machine.lockfile.pins import IMAGE_PREFIX, find_lock, optional_pins, read_lock
from loradock.text.amounts import some_of

# The lock of what runs; one for development holds tools besides, without which a run does as well.
RUN_TIME = "requirements.lock"
SHOWN = 3
# What loradock itself needs to train, by the name of its extra.
EXTRA = "train"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Names and versions alone; `lock` at the compute level looks into every file."""
    prefix, installed = host.prefix(), host.distributions()
    try:
        lock_file = find_lock(prefix)
    except InputMissing:
        return [ok(f"{len(installed)} packages; no lock file beside loradock: versions cannot be verified")]
    lock = lock_file.with_name(RUN_TIME) if lock_file.with_name(RUN_TIME).is_file() else lock_file
    locked = read_lock(lock, python_version=host.python())
    versions = {name: requirement.version for name, requirement in {**optional_pins(lock), **locked}.items()}
    findings = twice(installed, versions, prefix=prefix)
    missing = sorted(name for name in locked if name not in {distribution.name for distribution in installed})
    have = {distribution.name: distribution.version for distribution in installed}
    as_locked = {
        distribution.name
        for distribution in installed
        if is_same(distribution.version, versions.get(distribution.name, ""))
    }
    entry = {name: have[name] for name in versions if name in have and name not in as_locked}
    if missing or entry:
        # What runs comes first, so that it is named rather than a tool of development that asks for the same.
        in_order = sorted(installed, key=lambda entry: (entry.name not in locked, entry.name))
        requirements = {entry.name: host.requirements_of(entry) for entry in in_order}
        needs = unmet({*missing, *entry}, requirements, have)
        findings += judge(entry, needs, versions, prefix=prefix, lock=lock)
    return findings or [
        ok(f"{len(set(versions) & {distribution.name for distribution in installed})} packages as locked")
    ]


def is_same(first: str, second: str) -> bool:
    """True for the same release; a local label (2.10.0+cu128) is another build of it, which `cuda-packages` judges."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(Version(first).public) == Version(Version(second).public)
    except InvalidVersion:
        return first == second


def twice(installed: Sequence[Distribution], versions: Mapping[str, str], *, prefix: Path) -> list[Finding]:
    """A package with two dist-info folders: which version Python tells is a matter of chance."""
    by_name: defaultdict[str, list[Distribution]] = defaultdict(list)
    for distribution in installed:
        by_name[distribution.name].append(distribution)
    findings: list[Finding] = []
    for name, several in by_name.items():
        if len(several) > 1:
            what = f"{name} is installed {len(several)} times: {', '.join(copy.version for copy in several)}"
            strays = [copy for copy in several if copy.version != versions.get(name)] or several[1:]
            remedy = ANOTHER_IMAGE if prefix == IMAGE_PREFIX else f"rm -r {shlex.quote(strays[0].folder)}"
            findings.append(warning(what, remedy=remedy))
    return findings


def unmet(
    suspects: set[str], requirements: Mapping[str, Sequence[str]], have: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """{package: (who requires it, what)} for those of the suspects that an installed package cannot do with."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    needs: dict[str, tuple[str, str]] = {}
    for by, lines in requirements.items():
        for line in lines:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:  # nothing can be compared with what nobody can read
                continue
            name = canonicalize_name(requirement.name)
            extra = EXTRA if by == "loradock" else ""
            if name not in suspects or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
                continue
            if name not in have or not requirement.specifier.contains(have[name], prereleases=True):
                needs.setdefault(name, (by, f"{name}{requirement.specifier}"))
    return needs


def judge(
    differing: Mapping[str, str],
    needs: Mapping[str, tuple[str, str]],
    versions: Mapping[str, str],
    *,
    prefix: Path,
    lock: Path,
) -> list[Finding]:
    """An error for what another package cannot do with, a warning for the rest; what nobody asks for may be missing."""
    findings: list[Finding] = []
    for name, (by, requirement) in sorted(needs.items()):
        has = f"{name} {differing[name]} is installed" if name in differing else f"{name} is not installed"
        remedy = reinstall(prefix, {name: versions[name]})
        findings.append(error(f"{has}, {by} requires {requirement}; the lock has {versions[name]}", remedy=remedy))
    remaining = {name: versions[name] for name in sorted(differing) if name not in needs}
    if remaining:
        texts = [f"{name} {differing[name]} instead of {version}" for name, version in remaining.items()]
        what = f"not as locked: {some_of(texts, most=SHOWN)}"
        findings.append(warning(what, remedy=reinstall(prefix, remaining, lock=lock)))
    return findings


CHECK = Check(
    name="versions",
    group="packages",
    proves="Each installed package has the version of the lock, once, and none misses a requirement.",
    look=look,
)
