"""Xid: the kernel's log holds no error report of a GPU that this process may use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from loradock.env_check.base import Check, Finding, Intent, ok, warning
from loradock.env_check.known import xids
from loradock.env_check.seen import on_host, used_gpus
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState

XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Reports since the machine was started; one that a program can cause is left out."""
    lines = host.kernel_log()
    if lines is None:
        return [ok("the kernel's log is not readable here")]
    gpus = used_gpus(host)
    findings = [finding for gpu in gpus if (finding := judge(gpu, lines, xids()))]
    return on_host(findings, facts) or [ok("the kernel's log holds no report of a faulty GPU")]


def judge(gpu: GpuState, lines: Sequence[str], meanings: Mapping[int, str]) -> Finding | None:
    """The latest report about this GPU; a warning, since a reset may have fixed it."""
    reports = [match for line in lines if (match := XID.search(line)) and _is_of(gpu, match[1])]
    numbers = [int(report[2]) for report in reports if int(report[2]) in meanings]
    if not numbers:
        return None
    return warning(
        f"{gpu.label} reported Xid {numbers[-1]} since the start: {meanings[numbers[-1]]}",
        remedy=f"sudo dmesg | grep Xid && sudo nvidia-smi --gpu-reset -i {gpu.index}",
        reports=len(numbers),
    )


def _is_of(gpu: GpuState, address: str) -> bool:
    """The log names bus and device, without the function that NVML adds: 0000:17:00."""
    return gpu.pci_bus is not None and gpu.pci_bus.startswith(address.lower())


CHECK = Check(
    name="xid",
    group="gpu",
    proves="The kernel's log holds no Xid report of a faulty GPU, where it can be read.",
    look=look,
    needs="gpu",
)
