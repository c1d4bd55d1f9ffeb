"""Home: HOME is set, a folder, and this user's to write."""

from __future__ import annotations

from pathlib import Path

from loradock.checks.base import Check, Finding, Intent, error, ok, warning
from loradock.checks.system.cache_places import places
from loradock.errors import NotWritable
from loradock.facts import Facts
from loradock.host import Host


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """An error only where a cache that a run needs would lie in it; else some library may still want it."""
    home = host.environ.get("HOME")
    problem = _problem(host, home)
    if not problem:
        return [ok(f"{home} is writable")]
    inside = [place.what for place in places(host) if place.is_below_home]
    remedy = f"mkdir -p {plan.scratch}/home && export HOME={plan.scratch}/home"
    if inside:
        return [error(f"{problem}: no place for {', '.join(inside)}", remedy=remedy, ends=NotWritable)]
    return [warning(f"{problem}: a library that keeps its settings there may fail", remedy=remedy)]


def _problem(host: Host, home: str | None) -> str:
    if not home:
        return "HOME is not set"
    nearest = host.nearest(Path(home))
    if host.may_write(nearest):
        return ""
    if str(nearest) != home:
        return f"HOME is {home}, which is not there and cannot be made"
    return f"HOME is {home}, where uid {host.uid()} may not write"


CHECK = Check(
    name="home",
    group="system",
    proves="HOME is a folder that this user may write to.",
    look=look,
)
