"""What in the state of a GPU explains that it is slow, in few words; the same words for one node and for many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from loradock.machine.answers import GpuState

SLOWDOWNS = ("HW Power Brake Slowdown", "HW Thermal Slowdown", "SW Thermal Slowdown", "HW Slowdown", "SW Power Cap")
NOTICEABLE_FRACTION, NOTICEABLE_BYTES = 0.05, 2 << 30


def is_noticeable(used_bytes: int, memory_bytes: int) -> bool:
    """True for what others hold of a GPU's memory above the size of a desktop, or of a context of CUDA."""
    return used_bytes > max(NOTICEABLE_BYTES, NOTICEABLE_FRACTION * memory_bytes)


def suspects(gpu: GpuState | Mapping[str, Any]) -> Iterator[str]:
    """Each thing that slows this GPU down; `gpu` may be the form in which a state is written to JSON."""
    state = asdict(gpu) if isinstance(gpu, GpuState) else gpu
    for reason in SLOWDOWNS:
        if reason in (state.get("slowdowns") or ()):
            yield f"throttled: {reason}"
            break
    if state.get("uncorrected_volatile") or state.get("has_remap_pending") or state.get("has_remap_failed"):
        yield "ECC errors"
    if (limit := state.get("power_enforced_watts")) and limit < 0.99 * (state.get("power_default_watts") or 0):
        yield f"power limited to {limit:.0f} of {state['power_default_watts']:.0f} W"
    if (width := state.get("pcie_width")) and width < (state.get("pcie_width_max") or 0):
        yield f"PCIe x{width} of x{state['pcie_width_max']}"
    if (clock := state.get("sm_application_mhz")) and clock < (state.get("sm_default_mhz") or 0):
        yield f"clocks set to {clock} of {state['sm_default_mhz']} MHz"
    used_bytes, memory = state.get("used_bytes"), state.get("memory_bytes")
    if used_bytes and memory and is_noticeable(used_bytes, memory):
        yield "another process is on the GPU"
