"""The GPUs and their driver: what NVML, the driver's own library and the kernel's log say about them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loradock.facts import Gpu
from loradock.machine import gpu_state
from loradock.machine.answers import DriverState, GpuState
from loradock.machine.gpu_sample import GpuSampler
from loradock.machine.machine import Machine

VISIBLE = "CUDA_VISIBLE_DEVICES"
NVIDIA, DISPLAY = "0x10de", "0x03"
MODULE = re.compile(r"Kernel Module(?: for \w+)?\s+(\d+(?:\.\d+)+)")
KERNEL_LOG_LINES = 100_000


class Gpus(Machine):
    """NVIDIA GPUs of this machine, as this process may use them."""

    def gpus(self) -> tuple[tuple[Gpu, ...], str | None]:
        """The GPUs that this process may use, and the driver's version; () where none.

        They are in the order that CUDA_VISIBLE_DEVICES gives them, its numbers counted along the PCI bus. CUDA counts
        so too where CUDA_DEVICE_ORDER is PCI_BUS_ID, which a run sets unless the user has set it; else it puts what
        it holds for the fastest GPU first. A partitioned GPU (MIG) counts as its first instance, and then as the
        only GPU: CUDA sees no more of them. A GPU that does not answer is left out; `gpu_states` says so.
        """
        _, driver = self.nvml()
        return tuple(unit.gpu for unit in self._chosen() if unit.gpu), driver.version

    def chosen_states(self) -> tuple[GpuState, ...]:
        """The state of the GPU behind each of `gpus`, in the same order; asked once a process."""
        return tuple(unit.state for unit in self._chosen())

    def gpu_sampler(self, number: int) -> GpuSampler | None:
        """Something that asks the GPU behind `gpus()[number]` again and again; None where NVML does not answer."""
        states = self.chosen_states()
        if number >= len(states):
            return None
        import pynvml

        return GpuSampler.open(pynvml, states[number].index)

    def _chosen(self) -> list[Unit]:
        states, _ = self.nvml()
        units = [unit for unit in _units(states, shared_bytes=self.memory_bytes()) if not unit.state.failure]
        positions = visible([(unit.number, unit.uuid) for unit in units], self.environ.get(VISIBLE))
        chosen = [units[position] for position in positions if units[position].gpu]
        return [unit for unit in chosen if unit.gpu and " MIG " in unit.gpu.name][:1] or chosen

    def gpu_states(self, *, afresh: bool = False) -> tuple[GpuState, ...]:
        """Every GPU that NVML shows, in the order of the PCI bus; asked once a process unless `afresh`."""
        states, _ = self.nvml(afresh=afresh)
        return seen_through(states, self.environ)

    def nvml(self, *, afresh: bool = False) -> tuple[tuple[GpuState, ...], DriverState]:
        """All that NVML says: every GPU, whatever this process may use of them, and what it says of the driver.

        What is asked `afresh` is not kept: the first look stays that of a process which has taken no memory yet.
        """
        return _asked.__wrapped__() if afresh else _asked()

    def driver(self) -> DriverState:
        """The driver: its module, its libraries and its devices; asked once a process."""
        return _driver()

    def kernel_log(self) -> tuple[str, ...] | None:
        """The kernel's messages, the oldest first; None where this user may not read them."""
        try:
            log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        lines: list[str] = []
        try:
            while len(lines) < KERNEL_LOG_LINES:
                try:
                    lines.append(os.read(log, 8192).decode(errors="replace").partition(";")[2].splitlines()[0])
                except BrokenPipeError:  # the kernel overwrote what came next: continue with what is left
                    continue
                except BlockingIOError:
                    break
                except OSError:
                    return None
        finally:
            os.close(log)
        return tuple(lines)


def visible(names: Sequence[tuple[str, str]], variable: str | None) -> list[int]:
    """Positions of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    `names` holds each GPU's number and UUID. As in CUDA, an entry is a number or the beginning of a UUID, the first
    entry that names no GPU ends the list, and one that names a GPU again leaves none at all.
    """
    if variable is None:
        return list(range(len(names)))
    positions: list[int] = []
    for entry in (part.strip() for part in variable.split(",")):
        match = [i for i, (number, uuid) in enumerate(names) if entry and (entry == number or uuid.startswith(entry))]
        if not match:
            break
        positions.append(match[0])
    return positions if len(set(positions)) == len(positions) else []


def seen_through(states: Sequence[GpuState], environ: Mapping[str, str]) -> tuple[GpuState, ...]:
    """The states, with `is_visible` as this environment has it."""
    units = _units(states, shared_bytes=0)
    visible_units = visible([(unit.number, unit.uuid) for unit in units], environ.get(VISIBLE))
    indexes = {units[position].state.index for position in visible_units}
    return tuple(replace(state, is_visible=state.index in indexes) for state in states)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What CUDA could see: a whole GPU, or an instance of a divided one; `gpu` is None where CUDA would not see it.

    `number` counts the GPUs that this process is permitted, as CUDA does; `state.index` counts them all.
    """

    number: str
    state: GpuState
    uuid: str
    gpu: Gpu | None


def _units(states: Sequence[GpuState], *, shared_bytes: int) -> list[Unit]:
    """The GPUs permitted here, divided ones by their instances; one without memory of its own shares the machine's."""
    units: list[Unit] = []
    for place, state in enumerate(state for state in states if state.is_permitted):
        number = str(place)
        if state.mig_instances and state.capability:
            for instance in state.mig_instances:
                gpu = Gpu(name=instance.name, memory_bytes=instance.memory_bytes, capability=state.capability)
                units.append(Unit(number=number, state=state, uuid=instance.uuid, gpu=gpu))
        else:
            units.append(Unit(number=number, state=state, uuid=state.uuid or "?", gpu=_whole(state, shared_bytes)))
    return units


def _whole(state: GpuState, shared_bytes: int) -> Gpu | None:
    if state.is_mig or state.name is None or state.capability is None:
        return None
    memory = shared_bytes if state.memory_bytes is None else state.memory_bytes
    used_bytes = 0 if state.memory_bytes is None else state.used_bytes or 0
    return Gpu(name=state.name, memory_bytes=memory, capability=state.capability, taken_bytes=used_bytes)


@functools.lru_cache(maxsize=1)
def _asked() -> tuple[tuple[GpuState, ...], DriverState]:
    """All GPUs, and what NVML says of itself. Kept for the life of the process: an answer can take a second."""
    try:
        import pynvml
    except ImportError:
        return (), DriverState(nvml_failure="the Python package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as failure:
        return (), DriverState(nvml_failure=str(failure), nvml_library=_told(pynvml.nvmlSystemGetNVMLVersion))
    try:
        states = tuple(gpu_state.state(pynvml, index) for index in range(_told(pynvml.nvmlDeviceGetCount) or 0))
        return states, DriverState(
            version=_told(pynvml.nvmlSystemGetDriverVersion), nvml_library=_told(pynvml.nvmlSystemGetNVMLVersion)
        )
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _told(question: Callable[[], Any]) -> Any:
    """What NVML answers, or None where it does not."""
    import pynvml

    try:
        return question()
    except pynvml.NVMLError:
        return None


@functools.lru_cache(maxsize=1)
def _driver() -> DriverState:
    _, version = _asked()
    cuda, failure, library = _cuda_library()
    return replace(
        version,
        cuda=cuda,
        cuda_failure=failure,
        cuda_library=library,
        module=module_version(Machine().read_text("/proc/driver/nvidia/version") or ""),
        devices=tuple(_nvidia_devices()),
        nodes=tuple(sorted(glob.glob("/dev/nvidia[0-9]*")) + glob.glob("/dev/dxg")),
    )


def module_version(text: str) -> str | None:
    """The version of the kernel module in the text of /proc/driver/nvidia/version."""
    match = MODULE.search(text)
    return match[1] if match else None


def _cuda_library() -> tuple[int | None, str | None, str | None]:
    """The CUDA that libcuda.so.1 speaks, why it is not known, and the file of the library. Starts no context."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as failure:
        return None, str(failure), None
    paths = re.findall(r"\S*/libcuda\.so\S*", Machine().read_text("/proc/self/maps") or "")
    version = ctypes.c_int(0)
    code = library.cuDriverGetVersion(ctypes.byref(version))
    path = os.path.realpath(paths[0]) if paths else None
    return (version.value, None, path) if code == 0 else (None, f"cuDriverGetVersion returned {code}", path)


def _nvidia_devices() -> Iterator[str]:
    """PCI addresses of NVIDIA's graphics devices; its sound devices and switches are none."""
    machine = Machine()
    for folder in sorted(glob.glob("/sys/bus/pci/devices/*")):
        vendor, kind = (machine.read_text(f"{folder}/{name}") or "" for name in ("vendor", "class"))
        if vendor.strip() == NVIDIA and kind.startswith(DISPLAY):
            yield os.path.basename(folder)
