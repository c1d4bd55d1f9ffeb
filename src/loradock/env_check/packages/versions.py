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

# The lock of what runs; one for development holds tools besides, without which a run does as well.
RUN_TIME = "requirements.lock"
SHOWN = 3
# What loradock itself needs to train, by the name of its extra.
EXTRA = "train"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Names and versions alone; `lock` at the compute level looks into every file."""
    prefix, installed = host.prefix(), host.distributions()
    try:
        found = find_lock(prefix)
    except InputMissing:
        return [ok(f"{len(installed)} packages; no lock file beside loradock: versions cannot be verified")]
    lock = found.with_name(RUN_TIME) if found.with_name(RUN_TIME).is_file() else found
    locked = read_lock(lock, python_version=host.python())
    versions = {name: each.version for name, each in {**optional_pins(lock), **locked}.items()}
    findings = twice(installed, versions, prefix=prefix)
    missing = sorted(name for name in locked if name not in {each.name for each in installed})
    have = {each.name: each.version for each in installed}
    as_locked = {each.name for each in installed if is_same(each.version, versions.get(each.name, ""))}
    others = {name: have[name] for name in versions if name in have and name not in as_locked}
    if missing or others:
        # What runs comes first, so that it is named rather than a tool of development that asks for the same.
        in_order = sorted(installed, key=lambda each: (each.name not in locked, each.name))
        requirements = {each.name: host.requirements_of(each) for each in in_order}
        needs = unmet({*missing, *others}, requirements, have)
        findings += judge(others, needs, versions, prefix=prefix, lock=lock)
    return findings or [ok(f"{len(set(versions) & {each.name for each in installed})} packages as locked")]


def is_same(one: str, other: str) -> bool:
    """True for the same release; a local label (2.10.0+cu128) is another build of it, which `cuda-packages` judges."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(Version(one).public) == Version(Version(other).public)
    except InvalidVersion:
        return one == other


def twice(installed: Sequence[Distribution], versions: Mapping[str, str], *, prefix: Path) -> list[Finding]:
    """A package with two dist-info folders: which version Python tells is a matter of chance."""
    by_name: defaultdict[str, list[Distribution]] = defaultdict(list)
    for each in installed:
        by_name[each.name].append(each)
    findings: list[Finding] = []
    for name, several in by_name.items():
        if len(several) > 1:
            what = f"{name} is installed {len(several)} times: {', '.join(each.version for each in several)}"
            strays = [each for each in several if each.version != versions.get(name)] or several[1:]
            remedy = ANOTHER_IMAGE if prefix == IMAGE_PREFIX else f"rm -r {shlex.quote(strays[0].folder)}"
            findings.append(warning(what, remedy=remedy))
    return findings


def unmet(
    suspects: set[str], requirements: Mapping[str, Sequence[str]], have: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """{package: (who requires it, what)} for those of the suspects that an installed package cannot do with."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, tuple[str, str]] = {}
    for by, lines in requirements.items():
        for line in lines:
            try:
                wanted = Requirement(line)
            except InvalidRequirement:  # nothing can be compared with what nobody can read
                continue
            name = canonicalize_name(wanted.name)
            extra = EXTRA if by == "loradock" else ""
            if name not in suspects or (wanted.marker and not wanted.marker.evaluate({"extra": extra})):
                continue
            if name not in have or not wanted.specifier.contains(have[name], prereleases=True):
                found.setdefault(name, (by, f"{name}{wanted.specifier}"))
    return found


def judge(
    others: Mapping[str, str],
    needs: Mapping[str, tuple[str, str]],
    versions: Mapping[str, str],
    *,
    prefix: Path,
    lock: Path,
) -> list[Finding]:
    """An error for what another package cannot do with, a warning for the rest; what nobody asks for may be missing."""
    findings: list[Finding] = []
    for name, (by, wanted) in sorted(needs.items()):
        has = f"{name} {others[name]} is installed" if name in others else f"{name} is not installed"
        remedy = reinstall(prefix, {name: versions[name]})
        findings.append(error(f"{has}, {by} requires {wanted}; the lock has {versions[name]}", remedy=remedy))
    rest = {name: versions[name] for name in sorted(others) if name not in needs}
    if rest:
        said = [f"{name} {others[name]} instead of {version}" for name, version in rest.items()]
        more = f" and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
        what = f"not as locked: {', '.join(said[:SHOWN])}{more}"
        findings.append(warning(what, remedy=reinstall(prefix, rest, lock=lock)))
    return findings


CHECK = Check(
    name="versions",
    group="packages",
    proves="Each installed package has the version of the lock, once, and none misses a requirement.",
    look=look,
)
