"""The cards: what NVML and the driver's own library say about them."""

from __future__ import annotations

from collections.abc import Sequence

from loradock.facts import Gpu
from loradock.host.machine import Machine


class Cards(Machine):
    """NVIDIA cards of this machine, as this process may use them."""

    def gpus(self) -> tuple[tuple[Gpu, ...], str | None]:
        """The cards that this process may use, in CUDA's order for it, and the driver's version; () where none."""
        try:
            import pynvml
        except ImportError:
            return (), None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return (), None
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            names = [(str(index), pynvml.nvmlDeviceGetUUID(handle)) for index, handle in enumerate(handles)]
            chosen = [handles[index] for index in visible(names, self.environ.get("CUDA_VISIBLE_DEVICES"))]
            cards = tuple(
                Gpu(
                    name=pynvml.nvmlDeviceGetName(handle),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                    capability=pynvml.nvmlDeviceGetCudaComputeCapability(handle),
                )
                for handle in chosen
            )
            return cards, pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()


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
