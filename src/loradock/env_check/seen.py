"""The GPUs that checks judge, out of all that the host shows, and how findings name several of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from loradock.env_check.base import Finding, ok
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState


def used_gpus(host: Host, *, afresh: bool = False) -> tuple[GpuState, ...]:
    """The GPUs that this process may use and that answer."""
    return tuple(gpu for gpu in host.gpu_states(afresh=afresh) if gpu.is_visible and not gpu.failure)


def own_cards(host: Host, facts: Facts) -> dict[int, GpuState]:
    """The GPUs of this process by their number for torch: its own alone where others of the same run use the rest.

    They are as they were at the first look of this process, before it took any of their memory.
    """
    gpus = dict(enumerate(host.chosen_states()))
    if facts.processes_here == 1 or not gpus:
        return gpus
    gpu_index = facts.local_rank % len(gpus)
    return {gpu_index: gpus[gpu_index]}


def meanwhile(host: Host, gpu: GpuState) -> GpuState:
    """The GPU as it is by now; the memory in use stays that of the first look, as what came since is our own."""
    current = next((gpu_now for gpu_now in used_gpus(host, afresh=True) if gpu_now.index == gpu.index), gpu)
    return replace(current, used_bytes=gpu.used_bytes)


def each(
    gpus: Sequence[GpuState], judge: Callable[[GpuState], Finding | None], *, fine: str, **measured: float
) -> list[Finding]:
    """The findings of the GPUs that have one; where none has, one that all is well."""
    findings = [finding for finding in map(judge, gpus) if finding]
    return findings or [ok(fine, **measured)]


def on_host(findings: Sequence[Finding], facts: Facts) -> list[Finding]:
    """The findings, with the remedies that take root on the machine sent there from a container, which lacks that."""
    if not facts.in_container:
        return list(findings)
    return [
        replace(finding, remedy=f"ssh HOST {shlex.quote(finding.remedy)}")
        if finding.remedy.startswith("sudo ")
        else finding
        for finding in findings
    ]
