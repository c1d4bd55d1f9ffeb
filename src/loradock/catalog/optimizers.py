"""The optimisers of `train.optimizer`: what each one is. `model/optimizer.py` makes them.

To add one: its entry in `OPTIMIZERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

ADAMW = {"lr": "learning_rate", "betas": "betas", "eps": "eps", "weight_decay": "weight_decay"}
"""AdamW's hyperparameters (Loshchilov and Hutter 2019), by torch's names -> keys of `train`."""
RATE_AND_DECAY = {"lr": "learning_rate", "weight_decay": "weight_decay"}
"""Those of Lion (Chen et al. 2023), whose betas are its own, 0.9 and 0.99, and of Adafactor."""
FLOAT32_BITS = 32
BYTES_IN_8_BITS = 2 + 2 * 4 / 256
"""Of both moments of a weight: each has a float32 scale for a block of 256 (Dettmers et al. 2022)."""


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """One optimiser of the trained parameters.

    `module` and `kind` name the class that computes it, `options` are the arguments that make it this one, and
    `hyperparameters` those that a run sets: argument -> key of `train`. `state_bytes` is its state for a parameter,
    `device_bytes` what of that stays in the device's memory when there is little. `engines` and `devices` have it.
    `tolerance` is how far env-check lets some steps end from those in float64, as a share of the way, and `instead` the
    optimiser that takes its place where it does not work.
    """

    name: str
    title: str
    module: str
    kind: str
    engines: tuple[str, ...]
    tolerance: float
    instead: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    hyperparameters: Mapping[str, str] = field(default_factory=lambda: ADAMW)
    state_bits: int = FLOAT32_BITS
    state_bytes: float = 8.0
    device_bytes: int = 8

    def settings(self, train: object) -> dict[str, Any]:
        """The hyperparameters as the section `train` of a configuration has them, by the names of the arguments."""
        return {argument: getattr(train, key) for argument, key in self.hyperparameters.items()}


OPTIMIZERS: dict[str, Optimizer] = {
    entry.name: entry
    for entry in (
        Optimizer(
            name="adamw_fused",
            title="fused AdamW",
            module="torch.optim",
            kind="AdamW",
            options={"fused": True},
            engines=("fast", "peft", "fsdp", "zero"),
            tolerance=1e-4,
            instead="adamw",
        ),
        Optimizer(
            name="adamw",
            title="AdamW",
            module="torch.optim",
            kind="AdamW",
            options={"fused": False},
            engines=("peft", "zero"),
            tolerance=1e-4,
            instead="adamw_fused",
        ),
        Optimizer(
            name="adamw_8bit",
            title="8-bit AdamW",
            module="bitsandbytes.optim",
            kind="AdamW",
            options={"optim_bits": 8, "is_paged": False},
            engines=("peft",),
            devices=("cuda",),
            tolerance=0.15,
            instead="adamw_fused",
            state_bits=8,
            state_bytes=BYTES_IN_8_BITS,
            device_bytes=2,
        ),
        Optimizer(
            name="paged_adamw_8bit",
            title="paged 8-bit AdamW",
            module="bitsandbytes.optim",
            kind="AdamW",
            options={"optim_bits": 8, "is_paged": True},
            engines=("peft",),
            devices=("cuda",),
            tolerance=0.15,
            instead="adamw_8bit",
            state_bits=8,
            state_bytes=BYTES_IN_8_BITS,
            device_bytes=0,
        ),
        Optimizer(
            name="lion",
            title="Lion",
            module="bitsandbytes.optim",
            kind="Lion",
            options={"optim_bits": 32, "is_paged": False, "betas": (0.9, 0.99)},
            hyperparameters=RATE_AND_DECAY,
            engines=("peft",),
            tolerance=1e-4,
            instead="adamw",
            state_bytes=4.0,
            device_bytes=4,
        ),
        Optimizer(
            # Shazeer and Stern 2018 without their rule for the rate, as other trainers have it: the rate is the run's.
            # Of a matrix of LoRA it keeps a mean of each row and column: below a byte a weight from rank 4 on.
            name="adafactor",
            title="Adafactor",
            module="transformers.optimization",
            kind="Adafactor",
            options={"scale_parameter": False, "relative_step": False, "warmup_init": False},
            hyperparameters=RATE_AND_DECAY,
            engines=("peft",),
            tolerance=1e-4,
            instead="adamw",
            state_bytes=1.0,
            device_bytes=1,
        ),
    )
}
DEFAULT = OPTIMIZERS["adamw_fused"]
"""What "auto" comes to."""
SMALLEST = OPTIMIZERS["paged_adamw_8bit"]
"""What it comes to where memory demands it."""

MUON = (
    "Muon is left out: measured on LoRA's matrices it ends where AdamW does after equal steps, "
    "at its best rate (bench/results/fast-log.md)"
)

if TYPE_CHECKING:
    OptimizerName = str
else:
    OptimizerName = Literal["auto", *OPTIMIZERS]


def named(name: str) -> Optimizer:
    """The optimiser of that name; the default for "auto"."""
    return OPTIMIZERS.get(name, DEFAULT)


OWN_KEYS = tuple(dict.fromkeys(key for entry in OPTIMIZERS.values() for key in entry.hyperparameters.values()))
"""Keys of `train` that optimisers read."""


def of_engine(engine: str) -> tuple[str, ...]:
    """The names of those that an engine has."""
    return tuple(name for name, entry in OPTIMIZERS.items() if engine in entry.engines)
