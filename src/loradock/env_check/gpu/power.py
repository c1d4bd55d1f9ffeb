"""Power: nobody has capped a GPU below its default."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, warning
from loradock.env_check.seen import each, on_host, used_gpus
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState

SLACK = 0.99


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The limit that is enforced, whoever set it, against the default."""
    return on_host(each(used_gpus(host), judge, fine="power limits at their defaults"), facts)


def judge(gpu: GpuState) -> Finding | None:
    """None where the driver does not say, as for laptops."""
    limit, default = gpu.power_enforced_watts or gpu.power_limit_watts, gpu.power_default_watts
    if not limit or not default or limit >= default * SLACK:
        return None
    return warning(
        f"{gpu.label} is limited to {limit:.0f} of {default:.0f} W",
        remedy=f"sudo nvidia-smi -i {gpu.index} -pl {default:.0f}",
    )


CHECK = Check(
    name="power",
    group="gpu",
    proves="A GPU's power limit is its default.",
    look=look,
    needs="gpu",
)
