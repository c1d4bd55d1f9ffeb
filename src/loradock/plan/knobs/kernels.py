"""Which kernels compute: the fast engine's elementwise ones, Triton's on a GPU; those of recurrent layers elsewhere."""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.facts import COUNTED_TOKENS, Recurrence
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision

NAME = "kernels"


def decide(context: Context) -> Decision[str]:
    """triton, torch, or none where the fast engine does not train. Raises ConfigError for triton without a GPU."""
    setting = context.config.model.kernels
    if not context.engine.has_own_kernels:
        idle = f", so model.kernels={setting} has no effect" if setting != "auto" else ""
        reason = f"the {context.engine.name} engine computes with the model's own modules{idle}"
        recurrence = context.model.recurrence
        if recurrence and recurrence.missing:
            return Decision(name=NAME, value="torch", why=f"{reason}, {_cost(recurrence, context)}")
        return Decision(name=NAME, value="none", why=reason)
    if setting == "triton" and not context.on_gpu:
        raise ConfigError(
            f"model.kernels is triton, which needs a GPU, and the device is {context.plan.device.value}",
            hint="--set model.kernels=auto",
        )
    if setting != "auto":
        return asked(NAME, setting)
    if context.on_gpu:
        return Decision(name=NAME, value="triton", why="fused for the GPU")
    return Decision(name=NAME, value="torch", why="Triton needs a GPU")


def _cost(recurrence: Recurrence, context: Context) -> str:
    """What is missing for recurrent layers, and what that costs: what was counted, at the rates of the device."""
    missing = f"{recurrence.layers} recurrent layers in torch: {' and '.join(recurrence.missing)}"
    if not context.on_gpu:
        return f"{missing} have kernels for GPUs alone"
    if not recurrence.launches:
        return f"{missing} not installed"
    rates = context.rates
    seconds = (
        max(recurrence.launches * rates.kernel_seconds, recurrence.traffic_bytes / rates.bytes) * recurrence.layers
    )
    kept_bytes = recurrence.kept(context.plan.compute_dtype.value) * recurrence.layers * COUNTED_TOKENS
    return (
        f"{missing} not installed, which costs an estimated {seconds * 1e3:,.0f} ms and {kept_bytes / 2**20:,.0f} MiB "
        f"for a row of {COUNTED_TOKENS} tokens"
    )
