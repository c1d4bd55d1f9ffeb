"""MIG: a divided GPU has an instance for this process, and only one process needs it."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.seen import each, on_host, used_gpus
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """CUDA shows a process one MIG instance, whatever the number of instances and GPUs."""
    gpus = used_gpus(host)
    if any(gpu.mig_instances for gpu in gpus):
        if facts.processes_here > 1:
            return [
                error(
                    f"{facts.processes_here} processes, and CUDA shows each of them only the first MIG instance",
                    remedy="torchrun --nproc-per-node 1 -m loradock train ...",
                )
            ]
        return [ok(f"one MIG instance: {facts.gpu.name}")]
    return on_host(each(gpus, _undivided, fine="no GPU uses MIG"), facts)


def _undivided(gpu: GpuState) -> Finding | None:
    if gpu.is_mig:
        what, remedy = "is in MIG mode without an instance: no process can use it", "-mig 0"
    elif gpu.is_mig_pending:
        what, remedy = "enters MIG mode at its next reset, and CUDA will not see it then", "-mig 0"
    else:
        return None
    return warning(f"{gpu.label} {what}", remedy=f"sudo nvidia-smi -i {gpu.index} {remedy}")


CHECK = Check(
    name="mig",
    group="gpu",
    proves="A GPU in MIG mode has an instance, and only one process uses it.",
    look=look,
    needs="gpu",
)
