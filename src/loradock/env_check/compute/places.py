"""Where the checks compute: each GPU that a run may use, else the CPU, in the dtype that a run would use there."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.env_check.base import Finding, Intent, error, warning
from loradock.env_check.broken import broken
from loradock.env_check.remedies import showing
from loradock.errors import OutOfMemory
from loradock.facts import Facts
from loradock.machine import Host
from loradock.text import terminal

if TYPE_CHECKING:
    import torch

NO_MEMORY = ("CUDA error: out of memory", "STATUS_ALLOC_FAILED")
HOLDERS = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# How many roundings a result of few operations may be off: in float32 the sums count, in the others the factors.
ROUNDINGS = {"float32": 64.0, "tf32": 8.0, "float16": 8.0, "bfloat16": 8.0}


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device: torch's name for it, the dtype of matrix products there, its compute capability, None on the CPU.

    `is_used` is False for a GPU that this process sees and the run leaves alone.
    """

    device: str
    dtype: str
    capability: tuple[int, int] | None = None
    is_used: bool = True

    def __str__(self) -> str:
        return f"{self.device} in {self.dtype}"

    @property
    def is_gpu(self) -> bool:
        """True for a GPU."""
        return self.capability is not None

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch has it."""
        import torch

        return getattr(torch, self.dtype)

    @property
    def unit(self) -> float:
        """The unit roundoff of the dtype."""
        return UNIT_ROUNDOFF[self.dtype]

    @property
    def roundings(self) -> float:
        """How many units of roundoff a right result may be off."""
        return ROUNDINGS[self.dtype]

    def random(self, *shape: int, seed: int = 0, dtype: Any = None) -> torch.Tensor:
        """Standard normal numbers, the same on every device, in this dtype (or this place's)."""
        import torch

        tensor = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
        return tensor.to(device=self.device, dtype=dtype or self.torch_dtype)

    def finish(self) -> None:
        """Wait for the GPU, so that its faults show here, and give its memory back."""
        import torch

        if self.is_gpu:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()


def places(facts: Facts, plan: Intent) -> tuple[Device, ...]:
    """The GPUs, or the CPU where there is none or the configuration refuses them."""
    from loradock.plan.knobs.compute_dtype import FIRST_BFLOAT16

    setting = plan.config.model.compute_dtype if plan.config else "auto"
    if not plan.uses_gpu(facts):
        return (Device(device="cpu", dtype="float32" if setting == "auto" else setting),)
    gpus = used_gpus(facts)
    return tuple(
        Device(
            device=f"cuda:{index}",
            dtype=("bfloat16" if gpu.capability >= FIRST_BFLOAT16 else "float16") if setting == "auto" else setting,
            capability=gpu.capability,
            is_used=index in gpus,
        )
        for index, gpu in enumerate(facts.gpus)
    )


def used_gpus(facts: Facts) -> tuple[int, ...]:
    """The GPUs of this run's processes on this machine, by index; one process uses one, however many it sees."""
    ranks = {facts.local_rank, *range(facts.processes_here)}
    return tuple(sorted({rank % len(facts.gpus) for rank in ranks}))


def at_each(
    host: Host,
    facts: Facts,
    plan: Intent,
    look_at: Callable[[Device], Sequence[Finding]],
    *,
    is_first_alone: bool = False,
) -> list[Finding]:
    """What is found at each place, with as many threads as this process has CPUs; an error where torch has no GPU.

    A place that raises costs its own findings alone. What is wrong with a GPU that the run leaves alone is a warning.
    With `is_first_alone` only the first place that the run uses is looked at.
    """
    import torch

    torch.set_num_threads(max(1, min(facts.cpus, 8)))
    if plan.uses_gpu(facts) and not torch.cuda.is_available():
        what = f"torch {torch.__version__} cannot use the GPU that the driver reports"
        return [error(what, remedy="loradock env-check --only gpu,packages")]

    def finished(place: Device) -> Sequence[Finding]:
        findings = look_at(place)
        place.finish()
        return findings

    chosen_places = places(facts, plan)
    if is_first_alone:
        chosen_places = [place for place in chosen_places if place.is_used][:1]
    return [finding for place in chosen_places for finding in at_one(place, finished, facts, host.environ)]


def at_one(
    place: Device, look_at: Callable[[Device], Sequence[Finding]], facts: Facts, environ: Mapping[str, str]
) -> list[Finding]:
    """What is found at a place; a failure there is a finding too."""
    try:
        findings = look_at(place)
    except Exception as failure:  # noqa: BLE001  whatever it is, it is said of this place, and the others continue
        traceback.print_exc()
        findings = [failed(place, failure, facts, environ)]
    return list(findings) if place.is_used else beside(findings, facts, environ)


def failed(place: Device, failure: Exception, facts: Facts, environ: Mapping[str, str]) -> Finding:
    """A place where nothing could be found out."""
    if is_full(failure):
        alternatives = [index for index in range(len(facts.gpus)) if place.device != f"cuda:{index}"]
        remedy = showing(alternatives, environ) if alternatives else HOLDERS
        return error(
            f"{place.device} has too little free memory for a small computation", remedy=remedy, ends=OutOfMemory
        )
    return broken(failure, where=f" on {place}", remedy="loradock env-check --only gpu,packages,compute --report")


def beside(findings: Sequence[Finding], facts: Facts, environ: Mapping[str, str]) -> list[Finding]:
    """The findings of a GPU that no process of this run uses: no error among them."""
    gpus = used_gpus(facts)
    note = f"; a run here uses {', '.join(f'cuda:{index}' for index in gpus)}"
    remedy = showing(gpus, environ)
    return [
        warning(finding.what + note, remedy=remedy, **finding.measured) if finding.severity == "error" else finding
        for finding in findings
    ]


def is_full(failure: BaseException) -> bool:
    """True where a GPU had no memory left; a kernel is not at fault then."""
    import torch

    message = str(failure) if isinstance(failure, RuntimeError) else ""
    return isinstance(failure, torch.OutOfMemoryError) or any(text in message for text in NO_MEMORY)


def first_line(failure: Exception) -> str:
    """The first line of what a library says, or the type of its error."""
    return terminal.first_line(failure)[:160]
