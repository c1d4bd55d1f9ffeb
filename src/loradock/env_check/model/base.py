"""The base model: every file here and whole, or to be had from the hub."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.model.refusal import refusal
from loradock.env_check.remedies import train_with
from loradock.errors import EnvironmentUnfit, HubError, InputMissing, LoradockError, ModelError
from loradock.facts import Facts
from loradock.machine import Host, hub_access
from loradock.model import hub_cache
from loradock.text.suggest import nearest

if TYPE_CHECKING:
    from loradock.config.sections.model import ModelConfig

REFUSED = (401, 403)


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A directory is looked at file by file; a hub id in the hub's cache, and where it is not there, on the hub."""
    assert plan.config is not None
    model = plan.config.model
    if hub_cache.is_hub_id(model.name):
        return of_hub(host, model)
    directory = Path(model.name)
    if not directory.is_dir():
        return [missing(directory)]
    return faults(directory) or [ok(f"{directory} is complete")]


def missing(directory: Path) -> Finding:
    """A path that is not a directory, with the nearest name beside it."""
    if directory.exists():
        what = f"model {directory} is a file, not a directory"
        return error(what, remedy=train_with(f"model.name={directory.parent}"), ends=InputMissing)
    neighbours = [entry.name for entry in directory.parent.iterdir()] if directory.parent.is_dir() else []
    near = nearest(directory.name, neighbours)
    remedy = train_with(f"model.name={directory.parent / near}") if near else download_to(directory)
    return error(f"model directory {directory} does not exist", remedy=remedy, ends=InputMissing)


def download_to(directory: Path) -> str:
    """The command that fetches a model's files again; whose they are, a directory does not say."""
    return f"hf download OWNER/NAME --local-dir {shlex.quote(str(directory))}"


def faults(directory: Path, *, remedy: str = "") -> list[Finding]:
    """What is missing, cut short or cannot be trained; [] where all is well."""
    from loradock.model import config_file, prequantised
    from loradock.model.source import check_files

    remedy = remedy or download_to(directory)
    try:
        check_files(directory)
        refused = prequantised.refusal(config_file.read(directory))
    except LoradockError as wrong:
        may_read = f"chmod -R a+rX {shlex.quote(str(directory))}"
        return refusal(wrong, remedy=may_read if isinstance(wrong.__cause__, PermissionError) else remedy)
    return [error(f"{directory} {refused}", remedy=train_with("model.name=DIR"), ends=ModelError)] if refused else []


def of_hub(host: Host, model: ModelConfig) -> list[Finding]:
    """In the cache and complete; else fetchable."""
    revision = model.revision or "main"
    download = f"env HF_HUB_OFFLINE=0 hf download {model.name} --revision {revision}"
    snapshot = hub_cache.snapshot(model.name, revision, environ=host.environ)
    incomplete = faults(snapshot, remedy=download) if snapshot else []
    if snapshot and not incomplete:
        return [ok(f"{model.name} at {revision} is in the hub's cache, complete")]
    if hub_cache.is_offline(host.environ):
        if incomplete:
            return incomplete
        what = f"{model.name} at {revision} is not in the hub's cache, and the hub is switched off (offline mode)"
        return [error(what, remedy=download, ends=HubError)]
    mistakes = [
        error(problem.what, remedy=problem.hint or "", ends=EnvironmentUnfit)
        for problem in hub_access.wrong(host.environ)
    ]
    return mistakes or [answered(host, model.name, revision)]


def answered(host: Host, name: str, revision: str) -> Finding:
    """What the hub says of a model that a run would fetch; a refusal is the business of the check of the token."""
    url = host.hub_url(f"{name}/resolve/{revision}/config.json")
    status, reason = host.hub_answer(url, token=hub_cache.token(host))
    show = f"curl -sSIL {url}"
    if status is None:
        return warning(f"{name} is not in the hub's cache, and the hub cannot be reached", remedy=show)
    if status == 404:
        explanations = {"EntryNotFound": "has no config.json", "RevisionNotFound": f"has no revision {revision}"}
        what = f"the hub: {name} {explanations.get(reason, 'does not exist')}"
        return error(what, remedy=f"hf models info {name}", ends=HubError)
    if status >= 400 and status not in REFUSED:
        return warning(f"{name} is not in the hub's cache, and the hub answers {status}", remedy=show)
    return ok(f"the hub answers for {name} at {revision}")


CHECK = Check(
    name="base",
    group="model",
    proves="The base model's files are here and complete (headers and sizes, not every byte), or the hub has them.",
    look=look,
    needs="config",
    limit_seconds=15,
)
