"""Home: HOME is set, a folder, and this user's to write."""

from __future__ import annotations

import shlex
from pathlib import Path

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.system.cache_places import home_of, is_needed, places
from loradock.errors import NotWritable
from loradock.facts import Facts
from loradock.machine import Host


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """An error only where a cache that a run needs would lie in it; else some library may still want it."""
    home = home_of(host)
    if home is None:
        problem = f"HOME is not set, and uid {host.uid()} has no home in the user database"
    elif not host.may_write(nearest := host.nearest(Path(home))):
        why = (
            f"where uid {host.uid()} may not write" if str(nearest) == home else "which is not there and cannot be made"
        )
        problem = f"HOME is {home}, {why}"
    elif not host.environ.get("HOME"):
        return [
            warning(
                "HOME is not set: prepared data would be kept in /.cache", remedy=f"export HOME={shlex.quote(home)}"
            )
        ]
    else:
        return [ok(f"{home} is writable")]
    inside = [place.what for place in places(host, plan) if place.is_below_home and is_needed(place, host, facts, plan)]
    if inside:
        what = f"{problem}: no folder for {', '.join(inside)}"
        return [error(what, remedy="export HOME=$(mktemp -d)", ends=NotWritable)]
    return [warning(f"{problem}: a library that keeps its settings there may fail", remedy="export HOME=$(mktemp -d)")]


CHECK = Check(
    name="home",
    group="system",
    proves="HOME is a folder that this user may write to.",
    look=look,
)
