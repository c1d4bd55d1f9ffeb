"""What is wrong with a Kubernetes manifest: schema, meaning, and the Pod Security Standard "restricted".

To add a rule: a function `look(manifest)` that yields what it finds, by `field.found(what, remedy)`, in the file of its
family; a `Rule` with its name and its sentence in that file's table; a broken manifest in tests/manifests. A new family
is a new file, and a line in GROUPS. No rule relies on what another one found.
"""

from __future__ import annotations

from collections.abc import Iterator

from loradock.errors import Problem
from loradock.manifests.check import (
    containers,
    failure_policy,
    health,
    jobs,
    names,
    quantities,
    scheduling,
    schema,
    security_baseline,
    security_restricted,
    services,
    values,
    volumes,
)
from loradock.manifests.check.base import Manifest, Rule
from loradock.manifests.check.reading import read

LONGEST = 400

GROUPS: dict[str, tuple[Rule, ...]] = {
    "The schema, and single values": schema.RULES + values.RULES,
    "Names": names.RULES,
    "Containers": containers.RULES + quantities.RULES,
    "Volumes": volumes.RULES,
    "Starting and stopping": health.RULES,
    "Jobs": jobs.RULES + failure_policy.RULES,
    "Services and nodes": services.RULES + scheduling.RULES,
    "Pod Security: baseline": security_baseline.RULES,
    "Pod Security: restricted": security_restricted.RULES,
}
RULES: tuple[Rule, ...] = tuple(rule for group in GROUPS.values() for rule in group)


def problems(text: str, *, file: str) -> list[Problem]:
    """Everything that is wrong with the objects in `text`, by line; `file` is its name.

    Each problem's `what` begins with the name of its rule. What cannot be read as YAML is a problem as well: nothing is
    raised for any text, and EnvironmentUnfit only where the schemas of Kubernetes are not installed.
    """
    manifests, unreadable = read(text, file=file)
    found = (problem for manifest in manifests for problem in judge(manifest, file=file))
    return sorted([*unreadable, *found], key=lambda problem: problem.line or 0)


def judge(manifest: Manifest, *, file: str) -> Iterator[Problem]:
    """What each rule finds in one object, in the order of the table."""
    for rule in RULES:
        for found in rule.look(manifest):
            what, hint = _one_line(f"{rule.name}: {found.what}"), _one_line(found.remedy)
            yield Problem(what=what, file=file, line=manifest.line(found.path), hint=hint)


def _one_line(text: str) -> str:
    """The text, which may quote the manifest, as it can be shown: no control characters, and not without end."""
    shown = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
