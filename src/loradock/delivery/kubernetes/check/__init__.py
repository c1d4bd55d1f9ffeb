"""What is wrong with Kubernetes manifests: schema, meaning, and the Pod Security Standard "restricted".

To add a rule on a single value: a line in `api_server.yaml`. Any other is a function of a manifest that yields what it
finds, by `field.found(what, remedy)`: its name is the rule's, the first paragraph of its docstring the rule's sentence.
It goes into the file of its family and that file's RULES, with a broken manifest in tests/kubernetes. A new family is a
new file, and a line in GROUPS. No rule relies on what another one found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from loradock.delivery.kubernetes.check import (
    containers,
    health,
    jobs,
    meeting,
    places,
    pod_security,
    quantities,
    references,
    rendezvous,
    run_config,
    schema,
    services,
    volumes,
)
from loradock.delivery.kubernetes.check.base import Manifest, Rule
from loradock.delivery.kubernetes.check.fields import Level
from loradock.delivery.kubernetes.check.reading import read_all
from loradock.errors import Problem

LONGEST = 400

GROUPS: dict[str, tuple[Rule, ...]] = {
    "The schema": schema.RULES,
    "Names and references": references.RULES,
    "Containers": containers.RULES + quantities.RULES,
    "Volumes": volumes.RULES,
    "The configuration": run_config.RULES + places.RULES,
    "Starting and stopping": health.RULES,
    "Jobs": jobs.RULES,
    "Processes and nodes that meet": meeting.RULES + rendezvous.RULES,
    "Services and nodes": services.RULES,
    "Pod Security: baseline": pod_security.BASELINE,
    "Pod Security: restricted": pod_security.RESTRICTED,
}
RULES: tuple[Rule, ...] = tuple(rule for group in GROUPS.values() for rule in group)


@dataclass(frozen=True, kw_only=True)
class Violation(Problem):
    """A problem, the rule that found it ("yaml" for what cannot be read), and whether it is an error."""

    rule: str
    level: Level


def problems(texts: Mapping[str, str], *, skip: Collection[str] = ()) -> list[Violation]:
    """Everything that is wrong with the objects in the files, by file and line; `texts` has each file's by its name.

    All files are looked at side by side, as they would be applied. `skip` names rules that are left out. Each finding's
    `what` begins with the name of its rule. What cannot be read as YAML is an error as well: nothing is raised for any
    text, and EnvironmentUnfit only where the schemas of Kubernetes are not installed.
    """
    manifests, unreadable = read_all(texts)
    violations = [Violation(**vars(problem), rule="yaml", level="error") for problem in unreadable]
    violations += (finding for manifest in manifests for finding in judge(manifest, skip=skip))
    order = list(texts)
    return sorted(violations, key=lambda finding: (order.index(finding.file or ""), finding.line or 0))


def judge(manifest: Manifest, *, skip: Collection[str] = ()) -> Iterator[Violation]:
    """What each rule finds in one object, in the order of the table."""
    for rule in RULES:
        for violation in dict.fromkeys(rule.look(manifest)) if rule.name not in skip else ():
            yield Violation(
                rule=rule.name,
                level=violation.level or rule.level,
                what=_one_line(f"{rule.name}: {violation.what}"),
                file=manifest.file,
                line=violation.line or manifest.line(violation.path),
                hint=_one_line(violation.remedy),
            )


def _one_line(text: str) -> str:
    """The text, which may quote the manifest, as it can be shown: no control characters, and not without end."""
    text_shown = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
    return text_shown if len(text_shown) <= LONGEST else f"{text_shown[:LONGEST]}..."
