"""Where the checks compute: each card that a run may use, else the CPU, in the dtype that a run would use there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.checks.base import Finding, Intent, error
from loradock.facts import Facts

if TYPE_CHECKING:
    import torch

FIRST_BFLOAT16 = (8, 0)
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# How many roundings a result of few operations may be off: in float32 the sums count, in the others the factors.
ROUNDINGS = {"float32": 64.0, "tf32": 8.0, "float16": 8.0, "bfloat16": 8.0}


@dataclass(frozen=True, kw_only=True)
class Place:
    """One device: torch's name for it, the dtype of matrix products there, its compute capability, None on the CPU."""

    device: str
    dtype: str
    capability: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.device} in {self.dtype}"

    @property
    def is_card(self) -> bool:
        """True for a card."""
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

        made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
        return made.to(device=self.device, dtype=dtype or self.torch_dtype)

    def finish(self) -> None:
        """Wait for the card, so that its faults show here, and give its memory back."""
        import torch

        if self.is_card:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()


def places(facts: Facts, plan: Intent) -> tuple[Place, ...]:
    """The cards, or the CPU where there is none or the configuration refuses them."""
    asked = plan.config.model.compute_dtype if plan.config else "auto"
    if not uses_card(facts, plan):
        return (Place(device="cpu", dtype="float32" if asked == "auto" else asked),)
    return tuple(
        Place(
            device=f"cuda:{index}",
            dtype=("bfloat16" if gpu.capability >= FIRST_BFLOAT16 else "float16") if asked == "auto" else asked,
            capability=gpu.capability,
        )
        for index, gpu in enumerate(facts.gpus)
    )


def uses_card(facts: Facts, plan: Intent) -> bool:
    """True where a run computes on a card."""
    return facts.has_gpu and not plan.refuses_gpu


def at_each(facts: Facts, plan: Intent, look_at: Callable[[Place], Sequence[Finding]]) -> list[Finding]:
    """What is found at each place, with as many threads as this process has CPUs; an error where torch has no card."""
    import torch

    torch.set_num_threads(max(1, min(facts.cpus, 8)))
    if uses_card(facts, plan) and not torch.cuda.is_available():
        what = f"torch {torch.__version__} cannot use the card that the driver shows"
        return [error(what, remedy="loradock env-check --only gpu,packages")]
    found: list[Finding] = []
    for place in places(facts, plan):
        found += look_at(place)
        place.finish()
    return found
