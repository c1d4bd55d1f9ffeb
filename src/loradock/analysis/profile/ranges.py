"""Names for what the backends' methods do, as torch's profiler shows them: put on while it records, then taken off.

So a run that is not profiled pays nothing for them. To name another method: a line in `METHODS`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PREFIX = "loradock: "
DATA, TO_DEVICE, FORWARD, HEAD = "data", "host to device", "forward", "head and loss"
RECOMPUTE, BACKWARD, NORM, REPLAY = "recompute", "backward", "gradient norm", "graph replay"
OPTIMIZER, LOGGING, EVALUATION, SAVING = "optimizer", "logging", "evaluation", "saving"
ATTENTION, DEQUANTISE = "attention", "dequantise"

PASSES = (TO_DEVICE, FORWARD, HEAD, RECOMPUTE, BACKWARD, NORM, REPLAY)
"""What forward and backward passes are made of; none of these lies in another."""
OUTSIDE = (DATA, OPTIMIZER, LOGGING, EVALUATION, SAVING)
"""What lies outside the passes; in an evaluation there are forward passes, which count as evaluation."""

LOOP, BACKENDS = "loradock.training.loop", "loradock.training.backends"
FAST = f"{BACKENDS}.fast"
EVERY = (
    (LOOP, "Loop", "next_of", DATA),
    (LOOP, "Loop", "log", LOGGING),
    (LOOP, "Loop", "evaluate", EVALUATION),
    (LOOP, "Loop", "commit", SAVING),
)
"""What the loop does, whichever backend it drives."""


def autograd(name: str, *, has_backward: bool = True) -> tuple[tuple[str, str, str, str], ...]:
    """What a backend does that computes by autograd. `has_backward`: it has a `backward` of its own."""
    shared = (f"{BACKENDS}.autograd", "AutogradBackend")
    owner = (f"{BACKENDS}.{name}.backend", f"{name.capitalize()}Backend")
    module, kind = owner if has_backward else shared
    return (
        *EVERY,
        (*shared, "loss", FORWARD),
        (module, kind, "backward", BACKWARD),
        (*owner, "clip", NORM),
        (*owner, "update", OPTIMIZER),
    )


METHODS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "fast": (
        *EVERY,
        (f"{FAST}.backend", "FastBackend", "clip", NORM),
        (f"{FAST}.backend", "FastBackend", "update", OPTIMIZER),
        (f"{FAST}.batch", "Tokens", "to", TO_DEVICE),
        (f"{FAST}.layer", "Layer", "forward", FORWARD),
        (f"{FAST}.layer", "Layer", "recompute", RECOMPUTE),
        (f"{FAST}.layer", "Layer", "backward", BACKWARD),
        (f"{FAST}.head", "Head", "loss_and_gradient", HEAD),
        (f"{FAST}.pooler", "Pooler", "forward", HEAD),
        (f"{FAST}.pooler", "Pooler", "backward", HEAD),
        (f"{FAST}.graphs", "Graph", "replay", REPLAY),
        (f"{FAST}.weights", "FrozenWeight", "dense", DEQUANTISE),
        *(
            (f"{FAST}.attention.{module}", owner, method, ATTENTION)
            for module, owner in (
                ("flash_attn", "FlashAttn"),
                ("flash_torch", "FlashTorch"),
                ("flash_cpu", "FlashCpu"),
                ("per_document", "PerDocument"),
            )
            for method in ("forward", "backward")
        ),
    ),
    "peft": autograd("peft", has_backward=False),
    "fsdp": autograd("fsdp"),
    "zero": autograd("zero"),
}
"""By backend (of another the loop's alone): module, class, method, and the name of the range. torch names the steps
of its optimisers itself."""


@contextmanager
def named(backend: str) -> Iterator[None]:
    """Within, calls of the backend's methods are ranges of torch's profiler."""
    changed: list[tuple[Any, str, Any]] = []
    try:
        for module, owner, method, name in METHODS.get(backend, EVERY):
            cls = getattr(importlib.import_module(module), owner)
            real = cls.__dict__[method]
            changed.append((cls, method, real))
            setattr(cls, method, in_range(real, PREFIX + name))
        yield
    finally:
        for cls, method, real in reversed(changed):
            setattr(cls, method, real)


def in_range(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The method, each call of it a range of this name."""
    import torch

    @functools.wraps(method)
    def ranged(*arguments: Any, **more: Any) -> Any:
        with torch.profiler.record_function(name):
            return method(*arguments, **more)

    return ranged
