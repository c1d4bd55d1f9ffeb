"""Throttle: nothing holds a GPU's clocks down by heat or by the power supply."""

from __future__ import annotations

import time

from loradock.env_check.base import Check, Finding, Intent, ok, warning
from loradock.env_check.seen import used_gpus
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState

PAUSE_SECONDS = 0.3
# The nearest cause first: the general "HW Slowdown" is set with each of the more exact ones.
CAUSES = {
    "HW Power Brake Slowdown": "power brake by its power supply",
    "HW Thermal Slowdown": "it is too hot (hardware)",
    "SW Thermal Slowdown": "it is too hot (driver)",
    "HW Slowdown": "heat or the power supply (hardware slowdown)",
}


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Ask twice before saying so: a slowdown shows for a moment when the GPU changes its state."""
    gpus = used_gpus(host)
    if any(cause(gpu) for gpu in gpus):
        time.sleep(PAUSE_SECONDS)
        current = {gpu.index: gpu for gpu in used_gpus(host, afresh=True)}
        gpus = tuple(current.get(gpu.index, gpu) if cause(gpu) else gpu for gpu in gpus)
    findings = [finding for gpu in gpus if (finding := judge(gpu))]
    hottest = max((gpu.temperature_celsius or 0 for gpu in gpus), default=0)
    return findings or [ok("no throttling", hottest_celsius=hottest)]


def cause(gpu: GpuState) -> str | None:
    """The reason that holds the clocks down, of those that nobody chose; None where none does."""
    return next((reason for reason in CAUSES if reason in (gpu.slowdowns or ())), None)


def judge(gpu: GpuState) -> Finding | None:
    """A warning, as the run works, at a fraction of its speed."""
    reason = cause(gpu)
    if reason is None:
        return None
    measured = {
        f"{name}": float(value)
        for name, value in (("celsius", gpu.temperature_celsius), ("sm_mhz", gpu.sm_mhz))
        if value is not None
    }
    return warning(
        f"{gpu.label} is slowed down: {CAUSES[reason]}",
        remedy=f"nvidia-smi -q -i {gpu.index} -d PERFORMANCE,TEMPERATURE,POWER",
        **measured,
    )


CHECK = Check(
    name="throttle",
    group="gpu",
    proves="No GPU is throttled by heat or by the power supply.",
    look=look,
    needs="gpu",
)
