"""Caches: what libraries download and compile has a place that this user may write, and nobody else's."""

from __future__ import annotations

from pathlib import Path

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.system.cache_places import CacheFolder, home_of, is_needed, places
from loradock.errors import NotWritable
from loradock.facts import Facts
from loradock.machine import Host


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A cache below a HOME that cannot be written is the subject of `home`."""
    home = home_of(host)
    is_home_usable = home is not None and host.may_write(host.nearest(Path(home)))
    findings: list[Finding] = []
    for place in places(host, plan):
        if is_home_usable or not place.is_below_home:
            findings += judge(host, place, facts, plan)
    return findings or [ok("every cache folder is writable")]


def judge(host: Host, place: CacheFolder, facts: Facts, plan: Intent) -> list[Finding]:
    """Where the folder is, or where it would be made."""
    nearest = host.nearest(place.folder)
    remedy = f"export {place.variable}=$(mktemp -d)"
    if not host.may_write(nearest):
        what = f"{place.folder} ({place.what}) cannot be written by uid {host.uid()}"
        if is_needed(place, host, facts, plan):
            return [error(what, remedy=remedy, ends=NotWritable)]
        return [warning(what, remedy=remedy)]
    owner = host.owner(nearest)
    if nearest == place.folder and owner not in (host.uid(), 0) and place.variable != "HF_HOME":
        what = f"{place.folder} ({place.what}) belongs to uid {owner}, who can change the code that a run loads"
        return [warning(what, remedy=remedy)]
    return []


CHECK = Check(
    name="caches",
    group="system",
    proves="The caches of libraries (downloads, compiled code) are writable.",
    look=look,
)
