"""NVLink: a GPU has as many links up as its sisters."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, ok, warning
from loradock.env_check.seen import on_host, used_gpus
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState

SWITCH = "/dev/nvidia-nvswitch0"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A GPU alone needs no link, and one without a bridge has none: only GPUs of one kind are compared."""
    gpus, has_switch = used_gpus(host), host.exists(SWITCH)
    is_virtual = " hypervisor" in (host.read_text("/proc/cpuinfo") or "")
    judged = (judge(gpu, gpus, is_virtual=is_virtual, has_switch=has_switch) for gpu in gpus)
    findings = on_host([finding for finding in judged if finding], facts)
    up = sorted({sum(gpu.nvlinks) for gpu in gpus}, reverse=True)
    return findings or [ok(f"{up[0]} NVLinks up" if up and up[0] else "no NVLink in use")]


def judge(gpu: GpuState, gpus: tuple[GpuState, ...], *, is_virtual: bool, has_switch: bool) -> Finding | None:
    """Fewer links up than a sister; an SXM module has all of its links or none.

    In a virtual machine the links to the GPUs of other machines are down, a different number on each GPU; those to
    a switch are all there.
    """
    if is_virtual and not has_switch:
        return None
    sisters = [peer for peer in gpus if peer.name == gpu.name and len(peer.nvlinks) == len(gpu.nvlinks)]
    most = max((sum(peer.nvlinks) for peer in sisters), default=0)
    if len(gpus) > 1 and most and "SXM" in (gpu.name or "") and not is_virtual:
        most = len(gpu.nvlinks)
    if sum(gpu.nvlinks) >= most:
        return None
    down = ", ".join(str(link) for link, is_up in enumerate(gpu.nvlinks) if not is_up)
    look_at = f"nvidia-smi nvlink --status -i {gpu.index}"
    return warning(
        f"{gpu.label} has {sum(gpu.nvlinks)} of {most} NVLinks up (down: {down})",
        remedy=f"sudo systemctl restart nvidia-fabricmanager && {look_at}" if has_switch else look_at,
    )


CHECK = Check(
    name="nvlink",
    group="gpu",
    proves="No GPU has fewer NVLinks up than the others of its kind.",
    look=look,
    needs="gpu",
)
