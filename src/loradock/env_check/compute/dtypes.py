"""Matrix products in each dtype that this device claims, against float64."""

from __future__ import annotations

from typing import Any

from loradock.env_check.base import LOADED, Check, Finding, Intent, error, ok, warning
from loradock.env_check.compute.places import ROUNDINGS, UNIT_ROUNDOFF, Device, at_each
from loradock.env_check.remedies import train_with
from loradock.facts import Facts
from loradock.machine import Host

ROWS, INNER, COLUMNS = 96, 512, 160
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Each place in its own dtype and in those that a configuration may name there."""
    return at_each(host, facts, plan, lambda place: _at(place, host))


def _at(place: Device, host: Host) -> list[Finding]:
    errors = {name: product_error(place, name) for name in claimed(place)}
    return judge(place, errors, tf32_override=host.environ.get(TF32_OVERRIDE))


def claimed(place: Device) -> tuple[str, ...]:
    """The dtypes that matrix products of a run may have here."""
    if not place.is_gpu:
        return ("float32", "bfloat16")
    from loradock.plan.knobs.compute_dtype import FIRST_BFLOAT16

    newer = ("tf32", "bfloat16") if (place.capability or (0, 0)) >= FIRST_BFLOAT16 else ()
    return ("float32", "float16", *newer)


def product_error(place: Device, name: str) -> float:
    """Largest |AB - exact| / (|A| |B|) of a product in this dtype; inf where the result is not finite.

    The reference is computed in float64 from the rounded factors.
    """
    import torch

    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    a_mk, b_kn = place.random(ROWS, INNER, seed=1, dtype=dtype), place.random(INNER, COLUMNS, seed=2, dtype=dtype)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        product_mn = torch.matmul(a_mk, b_kn).cpu().double()
    finally:
        torch.set_float32_matmul_precision(precision)
    a, b = a_mk.cpu().double(), b_kn.cpu().double()
    worst = float(
        ((product_mn - torch.einsum("mk,kn->mn", a, b)).abs() / torch.einsum("mk,kn->mn", a.abs(), b.abs())).max()
    )
    return worst if worst == worst else float("inf")


def judge(place: Device, errors: dict[str, float], *, tf32_override: str | None = None) -> list[Finding]:
    """What the errors say; `errors` maps a dtype to the largest relative error of a product in it."""
    from loradock.plan.knobs.compute_dtype import FIRST_BFLOAT16

    findings: list[Finding] = []
    figures: dict[str, Any] = {f"{name}_relative_error": value for name, value in errors.items()}
    wrong = [name for name, value in errors.items() if value > ROUNDINGS[name] * UNIT_ROUNDOFF[name]]
    for name in wrong:
        what = f"products in {name} on {place.device} differ from float64 by more than {name} rounding"
        if name == "float32" and errors[name] <= ROUNDINGS["tf32"] * UNIT_ROUNDOFF["tf32"] and tf32_override:
            what = f"{TF32_OVERRIDE}={tf32_override} makes float32 products on {place.device} TF32 products"
            findings.append(warning(what, remedy=f"unset {TF32_OVERRIDE}", **figures))
        elif name == place.dtype:
            findings.append(error(what, remedy=_other(place), **figures))
        else:
            findings.append(warning(f"{what}; a run here uses {place.dtype}", remedy=_keep(place), **figures))
    if errors.get("tf32", 1.0) <= UNIT_ROUNDOFF["tf32"] / 64 and tf32_override == "0":
        what = f"{TF32_OVERRIDE}=0 keeps products on {place.device} from using TF32: they are slower"
        findings.append(warning(what, remedy=f"unset {TF32_OVERRIDE}"))
    if place.dtype == "bfloat16" and place.capability and place.capability < FIRST_BFLOAT16:
        what = (
            f"bfloat16 was requested, but {place.device} (sm{place.capability[0]}{place.capability[1]}) "
            "only emulates it"
        )
        findings.append(error(what, remedy=train_with("model.compute_dtype=float16")))
    right = [name for name in errors if name not in wrong]
    if not findings:
        findings.append(ok(f"products on {place.device} match float64 in {', '.join(right)}", **figures))
    return findings


def _other(place: Device) -> str:
    return (
        train_with("model.compute_dtype=float32")
        if place.dtype != "float32"
        else "loradock env-check --only packages,gpu"
    )


def _keep(place: Device) -> str:
    return train_with(f"model.compute_dtype={place.dtype}")


CHECK = Check(
    name="dtypes",
    group="compute",
    proves="Matrix products match float64 in each dtype that the device claims.",
    look=look,
    level="compute",
    limit_seconds=60,
    depends_on=(*LOADED, "device"),
)
