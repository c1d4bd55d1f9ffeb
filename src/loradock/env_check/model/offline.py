"""Offline mode: the variables that switch the hub off agree with one another."""

from __future__ import annotations

from collections.abc import Mapping

from loradock.env_check.base import Check, Finding, Intent, ok, warning
from loradock.facts import Facts
from loradock.machine import Host, hub_access
from loradock.model import hub_cache

SWITCHES = hub_access.OFFLINE
FALSE_WORDS = {"", "0", "OFF", "NO", "FALSE"}


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Without a hub id in the configuration the hub is not needed, whatever they say."""
    assert plan.config is not None
    names = [plan.config.model.name] if hub_cache.is_hub_id(plan.config.model.name) else []
    names += [source.path for source in plan.config.data.sources if source.path.startswith("hub:")]
    if not names:
        return [ok("the hub is not needed")]
    return judge(host.environ) or [ok(f"the hub is switched {'off' if hub_cache.is_offline(host.environ) else 'on'}")]


def judge(environ: Mapping[str, str]) -> list[Finding]:
    """What is wrong with the switches that are set; [] where they agree."""
    switches = {name: environ[name] for name in SWITCHES if name in environ}
    strange = {name: v for name, v in switches.items() if not hub_access.is_true(v) and v.upper() not in FALSE_WORDS}
    findings = [
        warning(f"{name} is {value!r}, which counts as 0: offline mode is not on", remedy=f"export {name}=1")
        for name, value in strange.items()
    ]
    on = [name for name, value in switches.items() if hub_access.is_true(value)]
    off = [name for name, value in switches.items() if value.upper() in FALSE_WORDS - {""}]
    if on and off:
        settings = ", ".join(f"{name}={switches[name]}" for name in (*on, *off))
        models, rows = hub_cache.is_offline(environ), hub_cache.datasets_are_offline(environ)
        effect = f"models {_state(models)}, data {_state(rows)}"
        findings.append(warning(f"{settings} contradict each other: {effect}", remedy=f"unset {' '.join(off)}"))
    return findings


def _state(is_offline: bool) -> str:
    return "offline" if is_offline else "online"


CHECK = Check(
    name="offline",
    group="model",
    proves="The variables for offline mode have valid values that agree.",
    look=look,
    needs="config",
)
