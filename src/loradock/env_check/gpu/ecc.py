"""ECC: no memory of a GPU lost data since the driver was loaded, and none waits to be replaced."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.seen import on_host, used_gpus
from loradock.errors import GpuSuspect
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Judge each GPU that this process may use."""
    gpus = used_gpus(host)
    measured = {
        f"gpu_{gpu.index}_{name}_errors": float(count)
        for gpu in gpus
        for name, count in (("corrected", gpu.corrected_volatile), ("uncorrected_ever", gpu.uncorrected_aggregate))
        if count
    }
    findings = [finding for gpu in gpus if (finding := judge(gpu, gpus))]
    with_ecc = sum(bool(gpu.is_ecc) for gpu in gpus)
    return on_host(findings, facts) or [
        ok(f"no uncorrected memory error; {with_ecc} of {len(gpus)} GPUs have ECC on", **measured)
    ]


def judge(gpu: GpuState, gpus: tuple[GpuState, ...]) -> Finding | None:
    """The worst of what the counters say: a row that cannot be replaced, lost data, a replacement that waits."""
    reset = f"sudo nvidia-smi --gpu-reset -i {gpu.index}"
    if gpu.has_remap_failed:
        alternatives = ",".join(str(candidate.index) for candidate in gpus if not candidate.has_remap_failed)
        return error(
            f"{gpu.label} could not replace a faulty row of its memory: it must be replaced",
            remedy=f"export CUDA_VISIBLE_DEVICES={alternatives}"
            if alternatives
            else "loradock train --set device=cpu ...",
            ends=GpuSuspect,
        )
    if gpu.uncorrected_volatile:
        return error(
            f"{gpu.label} had uncorrected memory errors since its driver was loaded",
            remedy=reset,
            ends=GpuSuspect,
            uncorrected_errors=gpu.uncorrected_volatile,
        )
    if gpu.has_remap_pending or gpu.has_retirement_pending:
        what = "row" if gpu.has_remap_pending else "page"
        return warning(f"{gpu.label} has a faulty {what} of memory, replaced at its next reset", remedy=reset)
    return None


CHECK = Check(
    name="ecc",
    group="gpu",
    proves="No GPU had an uncorrected memory error, and no faulty row or page of memory is pending replacement.",
    look=look,
    needs="gpu",
)
