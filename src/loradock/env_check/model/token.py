"""The token of the hub: there where the hub asks for one, and for nobody else to read. Its value is never shown."""

from __future__ import annotations

import shlex

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.errors import HubError
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model import hub_cache

REFUSED = (401, 403)


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The file that a login leaves, the variable's form, and the hub's answer for a model that is yet to be fetched."""
    return [*of_file(host), *of_variable(host), *of_hub(host, plan)] or [ok("no gated model or data set is used")]


def of_file(host: Host) -> list[Finding]:
    """A token that others can read is theirs too."""
    file = str(hub_cache.token_file(host.environ))
    if not host.others_may_read(file):
        return []
    return [
        warning(
            f"every user of this machine can read the hub's token in {file}", remedy=f"chmod 600 {shlex.quote(file)}"
        )
    ]


def of_variable(host: Host) -> list[Finding]:
    """Quotes and spaces come from env files, and the hub takes the token for a wrong one."""
    findings: list[Finding] = []
    for name in hub_cache.TOKENS:
        value = host.environ.get(name, "").strip()
        if value and (any(sign in value for sign in "\"' \t\n") or not value.isascii()):
            what = f"{name} holds quotes, spaces or letters that no token has"
            findings.append(warning(what, remedy=f"export {name}=TOKEN"))
    return findings


def of_hub(host: Host, plan: Intent) -> list[Finding]:
    """A gated or private model answers 401 or 403 without the right token; one request, nothing is fetched."""
    assert plan.config is not None
    name, revision = plan.config.model.name, plan.config.model.revision or "main"
    if not hub_cache.is_hub_id(name) or hub_cache.is_offline(host.environ):
        return []
    snapshot = hub_cache.snapshot(name, revision, environ=host.environ)
    if snapshot and any(snapshot.glob("*.safetensors")):
        return []
    token = hub_cache.token(host)
    status, reason = host.hub_answer(host.hub_url(f"{name}/resolve/{revision}/config.json"), token=token)
    if status not in REFUSED:
        return []
    why = "it is gated" if reason == "GatedRepo" else "it is gated, private, or misspelt"
    if token:
        what = f"the hub refuses {name} ({status}): {why}, and the token on this machine has no access"
        return [error(what, remedy="hf auth whoami", ends=HubError)]
    what = f"the hub refuses {name} ({status}): {why}, and there is no token on this machine"
    return [error(what, remedy="hf auth login", ends=HubError)]


CHECK = Check(
    name="token",
    group="model",
    proves="A gated model's token is present and has access; nobody else can read it. It is never printed.",
    look=look,
    needs="config",
    limit_seconds=15,
)
