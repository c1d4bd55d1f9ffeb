"""Clocks: nobody has set a GPU's application clocks below its default."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, warning
from loradock.env_check.seen import each, on_host, used_gpus
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The default is the measure, not the maximum: a T4's default lies far below it, and it boosts above."""
    return on_host(each(used_gpus(host), judge, fine="clocks at their defaults"), facts)


def judge(gpu: GpuState) -> Finding | None:
    """Each of the two clocks against its own default."""
    pairs = {
        "SM": (gpu.sm_application_mhz, gpu.sm_default_mhz),
        "memory": (gpu.memory_application_mhz, gpu.memory_default_mhz),
    }
    lowered = [
        f"{name} {current} of {default} MHz"
        for name, (current, default) in pairs.items()
        if current and default and current < default
    ]
    if not lowered:
        return None
    return warning(
        f"{gpu.label} has application clocks below their default: {', '.join(lowered)}",
        remedy=f"sudo nvidia-smi -i {gpu.index} -rac",
    )


CHECK = Check(
    name="clocks",
    group="gpu",
    proves="The application clocks of a GPU are not set below their default.",
    look=look,
    needs="gpu",
)
