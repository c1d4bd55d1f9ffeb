"""Precision: 4-bit base weights against 16-bit ones, and 16-bit products against float32's."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """The other form of the weights, and half precision where products are in float32."""
    return (*_weights(baseline), *_products(baseline))


def _weights(baseline: Baseline) -> tuple[Trial, ...]:
    now = baseline.config.model.quantization
    if now == "none":
        return (
            Trial(
                name="quantization-nf4",
                title="base weights in 4 bits instead of whole",
                settings=("model.quantization=nf4",),
                cause="whole base weights leave too little memory for larger passes",
                phase="passes",
                price="base weights are rounded to 4 bits",
                accuracy_risk="low",
            ),
        )
    if baseline.plan.value("engine") == "sharded":  # whole weights are four times as many to gather for each pass
        return ()
    return (
        Trial(
            name="quantization-none",
            title=f"whole base weights instead of {now}",
            settings=("model.quantization=none",),
            cause="base weights are dequantised for every product",
            phase="passes",
            price="the base weights take about four times the memory" if now == "nf4" else "twice the weights' memory",
            stability_risk="low",
        ),
    )


def _products(baseline: Baseline) -> tuple[Trial, ...]:
    if baseline.plan.value("compute_dtype") != "float32":
        return ()
    is_old = baseline.plan.value("device") == "cuda" and baseline.facts.gpu.capability < (8, 0)
    wanted = "float16" if is_old else "bfloat16"
    return (
        Trial(
            name=f"compute-{wanted}",
            title=f"products in {wanted} instead of float32",
            settings=(f"model.compute_dtype={wanted}",),
            cause="products in float32",
            phase="passes",
            price=f"products are rounded to {wanted}",
            accuracy_risk="low",
            stability_risk="moderate" if is_old else "none",
        ),
    )
