"""Which elementwise kernels the fast engine computes with: Triton's on a GPU, plain torch elsewhere."""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision

NAME = "kernels"


def decide(context: Context) -> Decision[str]:
    """triton, torch, or none where the fast engine does not train. Raises ConfigError for triton without a GPU."""
    wanted = context.config.model.kernels
    if not context.is_fast:
        idle = f", so model.kernels={wanted} has no effect" if wanted != "auto" else ""
        return Decision(
            name=NAME,
            value="none",
            why=f"the {context.plan.engine.value} engine computes with the model's own modules{idle}",
        )
    if wanted == "triton" and not context.on_gpu:
        raise ConfigError(
            f"model.kernels is triton, which needs a GPU, and the device is {context.plan.device.value}",
            hint="--set model.kernels=auto",
        )
    if wanted != "auto":
        return asked(NAME, wanted)
    if context.on_gpu:
        return Decision(name=NAME, value="triton", why="fused for the GPU")
    return Decision(name=NAME, value="torch", why="Triton needs a GPU")
