"""DeepSpeed: installed where the run asks for ZeRO, with what it needs to start, in the release that is locked."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.facts import Facts
from loradock.machine import Host

NEEDED = ("hjson", "msgpack", "ninja", "py-cpuinfo")


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """By what is installed; nothing of it is imported."""
    from loradock.plan.zero_config import BUILD, INSTALL, STAGES, TRIED

    mode = plan.config.train.parallel if plan.config else "auto"
    if mode not in STAGES:
        return [ok("the run does not ask for DeepSpeed")]
    installed = {distribution.name: distribution.version for distribution in host.distributions()}
    missing = [name for name in ("deepspeed", *NEEDED) if name not in installed]
    if missing:
        what = f"train.parallel {mode} needs DeepSpeed, and {', '.join(missing)} is not installed"
        return [error(what, remedy=BUILD if facts.in_container else INSTALL)]
    version = installed["deepspeed"]
    if version != TRIED:
        what = f"DeepSpeed {version} is installed, and {TRIED} is the version loradock was tested with"
        return [warning(what, remedy=INSTALL)]
    return [ok(f"DeepSpeed {version} and what it needs")]


CHECK = Check(
    name="deepspeed",
    group="packages",
    needs="config",
    proves="DeepSpeed is installed, in the tested release, if the run asks for ZeRO-2 or ZeRO-3.",
    look=look,
)
