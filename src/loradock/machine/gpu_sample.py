"""One GPU asked again and again, by the few questions of NVML that say how it is doing right now.

`gpu_state` asks everything once, which can take a second; these few take a fraction of a millisecond each, and NVML's
calls leave other threads of this process alone (ctypes lets go of the interpreter's lock).
"""

from __future__ import annotations

import contextlib
from typing import Any, Self

from loradock.machine.gpu_state import Asker, slowdowns_of


class GpuSampler:
    """Keeps NVML open for one GPU of NVML's numbering. A question that a GPU or driver refuses has no answer."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.ask = Asker(nvml, nvml.nvmlDeviceGetHandleByIndex(index))

    @classmethod
    def open(cls, nvml: Any, index: int) -> Self | None:
        """None where NVML or the GPU does not answer. `close` it."""
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return None
        try:
            return cls(nvml, index)
        except nvml.NVMLError:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
            return None

    def sample(self) -> dict[str, Any]:
        """What is known now: `utilization` (0 .. 1: of the last moments, the share in which any kernel ran),
        `card_used_bytes`, `card_total_bytes`, `power_watts`, `temperature_celsius`, `sm_mhz`, `slowdowns` (names).
        """
        nvml, ask = self.nvml, self.ask
        rates, memory = ask("UtilizationRates"), ask("MemoryInfo")
        sample = {
            "utilization": None if rates is None else rates.gpu / 100,
            "card_used_bytes": None if memory is None else int(memory.used),
            "card_total_bytes": None if memory is None else int(memory.total),
            "power_watts": ask.watts("PowerUsage"),
            "temperature_celsius": ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
            "sm_mhz": ask("ClockInfo", nvml.NVML_CLOCK_SM),
            "slowdowns": slowdowns_of(ask),
        }
        return {name: value for name, value in sample.items() if value is not None}

    def close(self) -> None:
        """Let go of NVML."""
        with contextlib.suppress(self.nvml.NVMLError):
            self.nvml.nvmlShutdown()
