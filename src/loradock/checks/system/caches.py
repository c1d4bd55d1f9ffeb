"""Caches: what libraries download and compile has a place that this user may write, and nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

from loradock.checks.base import Check, Finding, Intent, error, ok, warning
from loradock.checks.system.cache_places import Place, places
from loradock.checks.system.loading import has_card
from loradock.errors import NotWritable
from loradock.facts import Facts
from loradock.host import Host


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A cache below a HOME that cannot be written is the subject of `home`."""
    home = host.environ.get("HOME")
    is_home_usable = bool(home) and host.may_write(host.nearest(Path(home or "/")))
    found: list[Finding] = []
    for place in places(host):
        if is_home_usable or not place.is_below_home:
            found += judge(host, place, facts, plan)
    return found or [ok("every cache has a place that this user may write")]


def judge(host: Host, place: Place, facts: Facts, plan: Intent) -> list[Finding]:
    """Where the folder is, or where it would be made."""
    nearest = host.nearest(place.folder)
    name = place.variable.removesuffix("_CACHE_DIR").removesuffix("_HOME").lower()
    remedy = f"export {place.variable}={plan.scratch}/{name}"
    if not host.may_write(nearest):
        what = f"{place.folder} ({place.what}) cannot be written by uid {host.uid()}"
        if _is_needed(host, place, facts, plan):
            return [error(what, remedy=remedy, ends=NotWritable)]
        return [warning(what, remedy=remedy)]
    owner = host.owner(nearest)
    if nearest == place.folder and owner not in (host.uid(), 0) and place.variable != "HF_HOME":
        what = f"{place.folder} ({place.what}) belongs to uid {owner}, who may change the code that a run loads"
        return [warning(what, remedy=remedy)]
    return []


def _is_needed(host: Host, place: Place, facts: Facts, plan: Intent) -> bool:
    """A shared cache of models that may only be read serves all that is in it, and a local model needs none."""
    if place.variable == "HF_HOME":
        has_local_model = plan.config is not None and os.path.isabs(plan.config.model.name)
        return not has_local_model and not host.exists(str(place.folder))
    return has_card(facts, plan) or not place.is_for_cards


CHECK = Check(
    name="caches",
    group="system",
    proves="What libraries download and compile has a place that this user may write.",
    look=look,
)
