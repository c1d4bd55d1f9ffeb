"""Revisions: what is fetched from a hub is pinned by a commit, which cannot move."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, ok, warning
from loradock.env_check.remedies import train_with
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model import hub_cache

HUB_DATA = "hub:"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The model and each source that is named by a hub id."""
    assert plan.config is not None
    model = plan.config.model
    sources: list[tuple[str, str, str, str]] = []
    if hub_cache.is_hub_id(model.name):
        sources.append(("models", model.name, model.revision or "main", "model.revision"))
    for index, source in enumerate(plan.config.data.sources):
        if source.path.startswith(HUB_DATA):
            name = source.path.removeprefix(HUB_DATA)
            sources.append(("datasets", name, source.revision or "main", f"data.sources.{index}.revision"))
    moving = [(kind, name, rev, key) for kind, name, rev, key in sources if not hub_cache.COMMIT.fullmatch(rev)]
    if not moving:
        return [
            ok(f"{len(sources)} from the hub, each pinned by commit" if sources else "everything is named by its path")
        ]
    return [_warning(host, *source) for source in moving]


def _warning(host: Host, kind: str, name: str, revision: str, key: str) -> Finding:
    """The remedy holds the commit where the cache knows it, else the command that says it."""
    commit = hub_cache.commit(name, revision, environ=host.environ, kind=kind)
    what = (
        f"{key} {revision} of {name} is not a full commit hash (40 digits): a branch or tag can move between two runs"
    )
    ask = f"hf {kind} info {name} --revision {revision} --expand sha"
    return warning(what, remedy=train_with(f"{key}={commit}") if commit else ask)


CHECK = Check(
    name="revision",
    group="model",
    proves="Models and data sets from the hub are pinned by a full commit hash.",
    look=look,
    needs="config",
)
