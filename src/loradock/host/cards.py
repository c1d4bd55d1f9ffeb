"""The cards and their driver: what NVML, the driver's own library and the kernel's log say about them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loradock.facts import CardState, DriverState, Gpu
from loradock.host.card_state import state
from loradock.host.machine import Machine

NVIDIA, DISPLAY = "0x10de", "0x03"
MODULE = re.compile(r"Kernel Module(?: for \w+)?\s+(\d+(?:\.\d+)+)")
KERNEL_LOG_LINES = 100_000


class Cards(Machine):
    """NVIDIA cards of this machine, as this process may use them."""

    def gpus(self) -> tuple[tuple[Gpu, ...], str | None]:
        """The cards that this process may use, in CUDA's order for it, and the driver's version; () where none.

        A partitioned card (MIG) counts as its first instance, and then as the only card: CUDA sees no more of them.
        A card that does not answer is left out; `card_states` says so.
        """
        states, driver = self.nvml()
        units = _units([each for each in states if not each.failure])
        chosen = visible([(str(card.index), uuid) for card, uuid, _ in units], self.environ.get("CUDA_VISIBLE_DEVICES"))
        gpus = tuple(unit for _, _, unit in (units[position] for position in chosen) if unit is not None)
        instances = [gpu for gpu in gpus if " MIG " in gpu.name]
        return tuple(instances[:1] or gpus), driver.version

    def card_states(self, *, afresh: bool = False) -> tuple[CardState, ...]:
        """Every card that NVML shows, in the order of the PCI bus; asked once a process unless `afresh`."""
        states, _ = self.nvml(afresh=afresh)
        return seen_through(states, self.environ)

    def nvml(self, *, afresh: bool = False) -> tuple[tuple[CardState, ...], DriverState]:
        """All that NVML says: every card, whatever this process may use of them, and what it says of the driver."""
        if afresh:
            _asked.cache_clear()
        return _asked()

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
                except BrokenPipeError:  # the kernel overwrote what came next: go on with what is left
                    continue
                except BlockingIOError:
                    break
                except OSError:
                    return None
        finally:
            os.close(log)
        return tuple(lines)


def visible(names: Sequence[tuple[str, str]], wanted: str | None) -> list[int]:
    """Positions of the cards that CUDA_VISIBLE_DEVICES leaves, in its order.

    `names` holds each card's index and UUID. As in CUDA, an entry is an index or the beginning of a UUID, and the
    first entry that names no card ends the list.
    """
    if wanted is None:
        return list(range(len(names)))
    found: list[int] = []
    for entry in (part.strip() for part in wanted.split(",")):
        match = [i for i, (index, uuid) in enumerate(names) if entry and (entry == index or uuid.startswith(entry))]
        if not match:
            break
        found.append(match[0])
    return found


def seen_through(states: Sequence[CardState], environ: Mapping[str, str]) -> tuple[CardState, ...]:
    """The states, with `is_visible` as this environment has it."""
    units = _units(states)
    left = visible([(str(card.index), uuid) for card, uuid, _ in units], environ.get("CUDA_VISIBLE_DEVICES"))
    indexes = {units[position][0].index for position in left}
    return tuple(replace(each, is_visible=each.index in indexes) for each in states)


Unit = tuple[CardState, str, Gpu | None]


def _units(states: Sequence[CardState]) -> list[Unit]:
    """What CUDA could see, with the card it lies on and its UUID: whole cards, and the instances of divided ones."""
    units: list[Unit] = []
    for card in states:
        if card.mig_instances and card.capability:
            units += [
                (card, each.uuid, Gpu(name=each.name, memory_bytes=each.memory_bytes, capability=card.capability))
                for each in card.mig_instances
            ]
        elif card.is_mig or card.name is None or card.memory_bytes is None or card.capability is None:
            units.append((card, card.uuid or "?", None))
        else:
            whole = Gpu(name=card.name, memory_bytes=card.memory_bytes, capability=card.capability)
            units.append((card, card.uuid or "?", whole))
    return units


@functools.lru_cache(maxsize=1)
def _asked() -> tuple[tuple[CardState, ...], DriverState]:
    """All cards, and what NVML says of itself. Kept for the life of the process: an answer can take a second."""
    try:
        import pynvml
    except ImportError:
        return (), DriverState(nvml_failure="the Python package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as failure:
        return (), DriverState(nvml_failure=str(failure), nvml_library=_told(pynvml.nvmlSystemGetNVMLVersion))
    try:
        states = tuple(state(pynvml, index) for index in range(_told(pynvml.nvmlDeviceGetCount) or 0))
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
    _, told = _asked()
    cuda, failure, library = _cuda_library()
    return replace(
        told,
        cuda=cuda,
        cuda_failure=failure,
        cuda_library=library,
        module=module_version(Machine().read_text("/proc/driver/nvidia/version") or ""),
        devices=tuple(_nvidia_devices()),
        nodes=tuple(sorted(glob.glob("/dev/nvidia[0-9]*")) + glob.glob("/dev/dxg")),
    )


def module_version(text: str) -> str | None:
    """The version of the kernel module in the text of /proc/driver/nvidia/version."""
    found = MODULE.search(text)
    return found[1] if found else None


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
