"""Caches: what libraries download and compile has a place that this user may write, and nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

from loradock.checks.base import Check, Finding, Intent, error, ok, warning
from loradock.checks.system.cache_places import Place, home_of, places
from loradock.checks.system.loading import has_card
from loradock.errors import NotWritable
from loradock.facts import Facts
from loradock.host import Host


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A cache below a HOME that cannot be written is the subject of `home`."""
    home = home_of(host)
    is_home_usable = home is not None and host.may_write(host.nearest(Path(home)))
    found: list[Finding] = []
    for place in places(host):
        if is_home_usable or not place.is_below_home:
            found += judge(host, place, facts, plan)
    return found or [ok("every cache has a place that this user may write")]


def judge(host: Host, place: Place, facts: Facts, plan: Intent) -> list[Finding]:
    """Where the folder is, or where it would be made."""
    nearest = host.nearest(place.folder)
    remedy = f"export {place.variable}=$(mktemp -d)"
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
    """A shared cache of models that may only be read serves all that is in it, and a local model needs none.

    torch makes its own folder when it is imported, and writes there where it compiles.
    """
    if place.variable == "HF_HOME":
        has_local_model = plan.config is not None and os.path.isabs(plan.config.model.name)
        return not has_local_model and not host.exists(str(place.folder))
    if place.variable == "TORCHINDUCTOR_CACHE_DIR":
        compiles = plan.config is not None and plan.config.train.compile
        return compiles or not host.exists(f"{place.folder}/.")
    return has_card(facts, plan)


CHECK = Check(
    name="caches",
    group="system",
    proves="What libraries download and compile has a place that this user may write.",
    look=look,
)
