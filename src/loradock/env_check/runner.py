"""Runs checks, each bounded in time and crashing alone.

They run in child processes, one after another: quick ones in a fork of this process, the others in a fresh one that
keeps the libraries it imports for the checks after. A child that dies or hangs costs the check it was at, and the rest
continue in another child.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from loradock.env_check.base import LEVELS, Check, Intent, Level
from loradock.env_check.child import Child, Looked, Machine
from loradock.env_check.redaction import redactor
from loradock.facts import Facts
from loradock.machine import Host


def run(
    checks: Sequence[Check],
    *,
    host: Host,
    facts: Facts,
    plan: Intent,
    progress: Callable[[Looked], None] | None = None,
) -> list[Looked]:
    """Run the checks that apply: quick ones, then those that compute, then measurements, which want a quiet machine.

    `progress` gets each as it ends.
    """
    machine = (host, facts, plan)
    hide = redactor(host, with_names=False)
    looked: list[Looked] = []
    applying = [check for check in checks if check.applies(facts, plan)]
    for level in LEVELS:
        for look in _of_level([check for check in applying if check.level_with(plan) == level], machine, level):
            looked.append(_hidden(look, hide))
            if progress:
                progress(looked[-1])
    return looked


def _hidden(looked: Looked, hide: Callable[[str], str]) -> Looked:
    """Without secrets, which a path or an address may hold."""
    findings = tuple(
        replace(finding, what=hide(finding.what), remedy=hide(finding.remedy)) for finding in looked.findings
    )
    return replace(looked, findings=findings)


def _of_level(checks: Sequence[Check], machine: Machine, level: Level) -> Iterator[Looked]:
    """The checks one after another in one child, and each that may run beside them in one of its own."""
    method = "fork" if level == "quick" else "spawn"
    with contextlib.ExitStack() as children:
        neighbours = [
            (children.enter_context(contextlib.closing(Child(machine, method))), check)
            for check in checks
            if check.is_beside
        ]
        for child, check in neighbours:
            child.ask(check)
        yield from _in_turn([check for check in checks if not check.is_beside], machine, method)
        for child, _ in neighbours:
            yield child.answer()


def _in_turn(checks: Sequence[Check], machine: Machine, method: str) -> Iterator[Looked]:
    """Each check in the current child; one that is lost is replaced."""
    child: Child | None = None
    try:
        for check in checks:
            child = child or Child(machine, method)
            child.ask(check)
            yield child.answer()
            if child.is_lost:
                child.close()
                child = None
    finally:
        if child:
            child.close()
