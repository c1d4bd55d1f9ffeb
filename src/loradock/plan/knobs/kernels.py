"""Which kernels compute: the fast engine's elementwise ones, Triton's on a GPU, and those of recurrent layers."""

from __future__ import annotations

from dataclasses import replace

from loradock.errors import ConfigError
from loradock.facts import COUNTED_TOKENS, Recurrence
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision

NAME = "kernels"


def decide(context: Context) -> Decision[str]:
    """triton, torch, or none where the fast engine does not train. Raises ConfigError for triton without a GPU."""
    setting = context.config.model.kernels
    recurrence = context.model.recurrence
    beside = f", {_cost(recurrence, context)}" if recurrence and recurrence.missing else ""
    if not context.engine.has_own_kernels:
        idle = f", so model.kernels={setting} has no effect" if setting != "auto" else ""
        reason = f"the {context.engine.name} engine computes with the model's own modules{idle}"
        return Decision(name=NAME, value="torch" if beside else "none", why=f"{reason}{beside}")
    if setting == "triton" and not context.on_gpu:
        raise ConfigError(
            f"model.kernels is triton, which needs a GPU, and the device is {context.plan.device.value}",
            hint="--set model.kernels=auto",
        )
    if setting != "auto":
        chosen = asked(NAME, setting)
        return replace(chosen, why=f"{chosen.why}{beside}")
    if context.on_gpu:
        return Decision(name=NAME, value="triton", why=f"fused for the GPU{beside}")
    return Decision(name=NAME, value="torch", why=f"Triton needs a GPU{beside}")


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
    layers_kept = 1 if context.engine.has_own_kernels else recurrence.layers  # the fast engine makes it again
    kept_bytes = recurrence.kept(context.plan.compute_dtype.value) * layers_kept * COUNTED_TOKENS
    return (
        f"{missing} not installed, which costs an estimated {seconds * 1e3:,.0f} ms and {kept_bytes / 2**20:,.0f} MiB "
        f"for a row of {COUNTED_TOKENS} tokens"
    )
