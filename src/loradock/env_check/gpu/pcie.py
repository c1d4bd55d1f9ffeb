"""PCIe: a GPU's link has the width that GPU and slot can have."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, warning
from loradock.env_check.seen import each, on_host, used_gpus
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Width alone: an idle GPU lowers the generation of its link by itself, the bench level measures it at work."""
    gpus = used_gpus(host)
    is_virtual = " hypervisor" in (host.read_text("/proc/cpuinfo") or "")
    widths = ", ".join(dict.fromkeys(f"x{gpu.pcie_width}" for gpu in gpus if gpu.pcie_width))
    fine = f"PCIe {widths or 'links are not shown'}"
    return on_host(each(gpus, lambda gpu: judge(gpu, is_virtual=is_virtual), fine=fine), facts)


def judge(gpu: GpuState, *, is_virtual: bool) -> Finding | None:
    """Half a link is a fault to fix, but in a virtual machine it is how the provider wired the GPU."""
    width, possible = gpu.pcie_width, gpu.pcie_width_max
    if not width or not possible or width >= possible or (is_virtual and width * 2 >= possible):
        return None
    return warning(
        f"{gpu.label} is linked by PCIe x{width} of x{possible}: a loose GPU or riser, or a narrow slot",
        remedy=f"sudo lspci -vv -s {gpu.pci_bus} | grep Lnk" if gpu.pci_bus else f"nvidia-smi -q -i {gpu.index}",
    )


CHECK = Check(
    name="pcie",
    group="gpu",
    proves="The PCIe link of a GPU has its full width.",
    look=look,
    needs="gpu",
)
