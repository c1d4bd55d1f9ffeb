"""One GPU's state by NVML: each question may be unsupported, and then its answer is None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loradock.machine.answers import GpuProcess, GpuState, MigInstance

# The bits of nvmlDeviceGetCurrentClocksEventReasons, in the words of `nvidia-smi -q`.
REASONS = {
    0x01: "Idle",
    0x02: "Applications Clocks Setting",
    0x04: "SW Power Cap",
    0x08: "HW Slowdown",
    0x10: "Sync Boost",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
    0x100: "Display Clock Setting",
}


class Asker:
    """Asks NVML about one GPU, and keeps quiet where it does not know."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle

    def __call__(self, name: str, *arguments: Any) -> Any:
        """The answer of `nvmlDeviceGet<name>`, or None."""
        question: Callable[..., Any] | None = getattr(self.nvml, f"nvmlDeviceGet{name}", None)
        if question is None:
            return None
        try:
            return question(self.handle, *arguments)
        except self.nvml.NVMLError:
            return None

    def flag(self, name: str) -> bool | None:
        """A feature that is on, off, or not there."""
        answer = self(name)
        return None if answer is None else bool(answer)

    def watts(self, name: str) -> float | None:
        """A power in W; NVML counts in mW."""
        answer = self(name)
        return None if answer is None else answer / 1000


def state(nvml: Any, index: int) -> GpuState:
    """The GPU of this index; with `failure` alone where it does not answer. Never raises an NVMLError."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = _memory(nvml, handle)
    except nvml.NVMLError as failure:
        is_permitted = failure.value != nvml.NVML_ERROR_NO_PERMISSION
        return GpuState(index=index, is_permitted=is_permitted, failure=str(failure))
    ask = Asker(nvml, handle)
    return GpuState(
        index=index,
        name=ask("Name"),
        uuid=ask("UUID"),
        pci_bus=_bus(ask),
        capability=_capability(ask),
        memory_bytes=None if memory is None else int(memory.total),
        used_bytes=None if memory is None else _used(ask, int(memory.used)),
        processes=_processes(ask),
        temperature_celsius=ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        is_persistent=ask.flag("PersistenceMode"),
        slowdowns=slowdowns_of(ask),
        nvlinks=_nvlinks(ask),
        **_partitions(ask),
        **_errors(ask),
        **_clocks(ask),
        **_power_and_link(ask),
    )


def _memory(nvml: Any, handle: Any) -> Any:
    """The GPU's memory; None where it has none of its own to tell of. Raises what says that the GPU is dead."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as failure:
        if failure.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED, nvml.NVML_ERROR_UNKNOWN):
            raise
        return None


def _bus(ask: Asker) -> str | None:
    """The PCI address as the kernel writes it: 0000:17:00.0, lower case, four digits of domain."""
    info = ask("PciInfo")
    if info is None:
        return None
    text = info.busId.decode() if isinstance(info.busId, bytes) else info.busId
    domain, _, address = text.lower().partition(":")
    return f"{domain[-4:]}:{address}"


def _capability(ask: Asker) -> tuple[int, int] | None:
    answer = ask("CudaComputeCapability")
    return (int(answer[0]), int(answer[1])) if answer else None


def _used(ask: Asker, used_bytes: int) -> int:
    """Memory in use, without what the driver keeps for itself where it says how much that is."""
    version = getattr(ask.nvml, "nvmlMemory_v2", None)
    exact = ask("MemoryInfo", version) if version else None
    return int(exact.used) if exact is not None else used_bytes


def _processes(ask: Asker) -> tuple[GpuProcess, ...]:
    """By the versioned questions: the plain ones raise what is not an NVMLError on a driver older than the package."""
    processes = [
        process
        for kind in ("Compute", "Graphics")
        for process in ask(f"{kind}RunningProcesses_v3") or ask(f"{kind}RunningProcesses_v2") or ()
    ]
    return tuple(
        GpuProcess(pid=pid, used_bytes=used_bytes)
        for pid, used_bytes in sorted({process.pid: process.usedGpuMemory for process in processes}.items())
    )


def slowdowns_of(ask: Asker) -> tuple[str, ...] | None:
    """What holds the clocks down now, in the words of `nvidia-smi -q`; None where the driver does not tell."""
    bits = ask("CurrentClocksEventReasons")
    if bits is None:  # drivers before 535 know it by its old name
        bits = ask("CurrentClocksThrottleReasons")
    return None if bits is None else tuple(name for bit, name in REASONS.items() if bits & bit)


def _nvlinks(ask: Asker) -> tuple[bool, ...]:
    states = (ask("NvLinkState", link) for link in range(ask.nvml.NVML_NVLINK_MAX_LINKS))
    return tuple(bool(link) for link in states if link is not None)


def _partitions(ask: Asker) -> dict[str, Any]:
    modes = ask("MigMode")
    if modes is None:
        return {}
    instances: list[MigInstance] = []
    for number in range((ask("MaxMigDeviceCount") or 0) if modes[0] else 0):
        handle = ask("MigDeviceHandleByIndex", number)
        if handle is None:
            continue
        of = Asker(ask.nvml, handle)
        memory = of("MemoryInfo")
        name = of("Name") or f"{ask('Name')} MIG instance"
        instances.append(
            MigInstance(uuid=of("UUID") or "?", name=name, memory_bytes=int(memory.total) if memory else 0)
        )
    return {"is_mig": bool(modes[0]), "is_mig_pending": bool(modes[1]), "mig_instances": tuple(instances)}


def _errors(ask: Asker) -> dict[str, Any]:
    nvml, mode, remapped = ask.nvml, ask("EccMode"), ask("RemappedRows")
    counts = {
        "corrected_volatile": (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
        "uncorrected_volatile": (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "uncorrected_aggregate": (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC),
    }
    return {
        "is_ecc": None if mode is None else bool(mode[0]),
        **{name: ask("TotalEccErrors", *which) for name, which in counts.items()},
        "has_retirement_pending": ask.flag("RetiredPagesPendingStatus"),
        "has_remap_pending": None if remapped is None else bool(remapped[2]),
        "has_remap_failed": None if remapped is None else bool(remapped[3]),
    }


def _clocks(ask: Asker) -> dict[str, Any]:
    questions = {
        "": "ClockInfo",
        "_max": "MaxClockInfo",
        "_application": "ApplicationsClock",
        "_default": "DefaultApplicationsClock",
    }
    domains = {"sm": ask.nvml.NVML_CLOCK_SM, "memory": ask.nvml.NVML_CLOCK_MEM}
    graphics = ask.nvml.NVML_CLOCK_GRAPHICS
    return {
        # Application clocks are kept by the graphics domain, which the SMs follow.
        f"{domain}{suffix}_mhz": ask(
            question, graphics if domain == "sm" and question.endswith("ApplicationsClock") else number
        )
        for domain, number in domains.items()
        for suffix, question in questions.items()
    }


def _power_and_link(ask: Asker) -> dict[str, Any]:
    return {
        "power_limit_watts": ask.watts("PowerManagementLimit"),
        "power_default_watts": ask.watts("PowerManagementDefaultLimit"),
        "power_enforced_watts": ask.watts("EnforcedPowerLimit"),
        "pcie_generation": ask("CurrPcieLinkGeneration"),
        "pcie_generation_max": ask("MaxPcieLinkGeneration"),
        "pcie_width": ask("CurrPcieLinkWidth"),
        "pcie_width_max": ask("MaxPcieLinkWidth"),
    }
