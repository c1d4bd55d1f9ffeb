"""A 4-bit linear layer: NF4 there and back, the product and its gradient, against the published NF4 in float64."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loradock.env_check.base import LOADED, Check, Finding, Intent, error, ok, warning
from loradock.env_check.compute.places import Device, at_each
from loradock.env_check.remedies import as_locked
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model import nf4

if TYPE_CHECKING:
    import torch

# Rows of whole blocks, rows that are none, and rows at which bitsandbytes' kernel for CPUs has to be fixed.
SHAPES = ((128, 256), (130, 72), (96, 320), (64, 160))
TOKENS = (1, 7, 48)
TABLE_TOLERANCE = 1e-5
SCALE_TOLERANCE = 0.01
OVERRIDE = "BNB_CUDA_VERSION"
WHEELS = {
    "libcudart": "nvidia-cuda-runtime",
    "libcublas": "nvidia-cublas",
    "libcublasLt": "nvidia-cublas",
    "libcusparse": "nvidia-cusparse",
    "libnvJitLink": "nvidia-nvjitlink",
}


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Each place; nothing where the configuration stores the base otherwise."""
    if plan.config and not plan.config.model.storage.is_dequantised:
        return [ok(f"the base is stored as {plan.config.model.quantization}, not in NF4")]
    is_double = plan.config.model.double_quant if plan.config else True

    def again(name: str) -> str:
        return as_locked(host, name)

    def at(place: Device) -> list[Finding]:
        message = library(place, host.environ, again)
        return [message] if message else judge(place, measure(place, is_double=is_double), again("bitsandbytes"))

    return at_each(host, facts, plan, at)


def library(place: Device, environ: Mapping[str, str], remedy: Callable[[str], str]) -> Finding | None:
    """What is wrong with the compiled library of bitsandbytes, or None."""
    try:
        from bitsandbytes.cextension import lib
    except (ImportError, OSError, RuntimeError) as failure:
        return judge_library(str(failure), environ, is_gpu=place.is_gpu, again=remedy)
    message = vars(lib).get("error_msg")
    if message is None and (not place.is_gpu or lib.compiled_with_cuda):
        return None
    return judge_library(message or "compiled without GPU support", environ, is_gpu=place.is_gpu, again=remedy)


def judge_library(message: str, environ: Mapping[str, str], *, is_gpu: bool, again: Callable[[str], str]) -> Finding:
    """The finding for what bitsandbytes says of its library, which it only loads when it is first needed.

    `again` gives the command that reinstalls a package.
    """
    if not is_gpu and "can run without native library" in message:
        what = "the compiled library of bitsandbytes does not load: 4-bit layers are slower on this CPU"
        return warning(what, remedy=again("bitsandbytes"))
    if is_gpu and OVERRIDE in environ:
        what = f"bitsandbytes looks for the CUDA {environ[OVERRIDE]} library that {OVERRIDE} names, and cannot use it"
        return error(what, remedy=f"unset {OVERRIDE}")
    missing = re.search(r"(lib\w+)\.so\.(\d+)[\d.]*: cannot open shared object file", message)
    if missing and missing[1] in WHEELS:
        what = f"bitsandbytes cannot load its CUDA library: {missing[0].split(':')[0]} is missing"
        wheel = WHEELS[missing[1]] + "-cu12" * (missing[2] == "12")
        return error(what, remedy=again(wheel))
    line = next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")
    return error(
        f"bitsandbytes cannot use this {'gpu' if is_gpu else 'CPU'}: {line[:160]}", remedy=again("bitsandbytes")
    )


def measure(place: Device, *, is_double: bool) -> dict[str, float]:
    """The largest errors over all shapes: of table and scales over a block's scale, of products in roundoffs."""
    worst = {"table": 0.0, "scales": 0.0, "forward": 0.0, "backward": 0.0}
    for seed, (rows, columns) in enumerate(SHAPES):
        raw = place.random(rows, columns, seed=seed)
        weights = nf4.clear_of_ties(raw.float().cpu()).to(raw)
        layer = linear(weights, place, is_double=is_double)  # first: with it, what a run fixes is fixed
        values, scales = table(weights)
        figures = {"table": values}
        if is_double:
            figures["scales"], scales = double(weights)
        expected = as_stored(layer) if values > TABLE_TOLERANCE else nf4.rebuilt(weights, scales)
        for tokens in TOKENS:
            figures["forward"], figures["backward"] = products(layer, expected, place, tokens)
            worst = {name: highest(worst[name], figures.get(name, 0.0)) for name in worst}
    return worst


def highest(first: float, second: float) -> float:
    """The larger; inf where either is not a number."""
    return math.inf if math.isnan(first + second) else max(first, second)


def table(weights: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Largest error of a weight there and back over its block's scale, with exact scales; and the scales."""
    from bitsandbytes import functional

    packed, state = functional.quantize_4bit(
        weights.float(), blocksize=nf4.BLOCK, compress_statistics=False, quant_type="nf4"
    )
    blocks = nf4.blocks(functional.dequantize_4bit(packed, state))
    scales = nf4.absmax(weights)
    return float(((blocks - nf4.blocks(nf4.rebuilt(weights))) / scales).abs().max()), scales


def double(weights: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Largest error of a block's scale after it was quantised too, over their spread; and those scales."""
    from bitsandbytes import functional

    packed, state = functional.quantize_4bit(
        weights.float(), blocksize=nf4.BLOCK, compress_statistics=True, quant_type="nf4"
    )
    largest = nf4.blocks(functional.dequantize_4bit(packed, state)).abs().amax(dim=1, keepdim=True)
    exact = nf4.absmax(weights)
    return float((largest - exact).abs().max() / (exact - exact.mean()).abs().max()), largest


def linear(weights: torch.Tensor, place: Device, *, is_double: bool) -> Any:
    """The layer as a run has it: quantised when it is moved to its device."""
    import bitsandbytes as bnb

    from loradock.model.patches import PATCHES

    rows, columns = weights.shape
    layer = bnb.nn.Linear4bit(
        columns, rows, bias=False, compute_dtype=place.torch_dtype, compress_statistics=is_double, quant_type="nf4"
    )
    params_4bit: Any = bnb.nn.Params4bit
    layer.weight = params_4bit(
        weights.cpu(), requires_grad=False, compress_statistics=is_double, quant_type="nf4", blocksize=nf4.BLOCK
    )
    layer = layer.to(place.device)
    for patch in PATCHES:
        patch(layer)
    return layer


def as_stored(layer: Any) -> torch.Tensor:
    """The weights that the layer itself unpacks, float64."""
    from bitsandbytes import functional

    return functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).cpu().double()


def products(layer: Any, expected: torch.Tensor, place: Device, tokens: int) -> tuple[float, float]:
    """Largest errors of X W' and of its gradient for X, each over |X| |W'|, in units of roundoff."""
    import torch

    rows, columns = expected.shape
    x = place.random(tokens, columns, seed=11).requires_grad_()
    gradient = place.random(tokens, rows, seed=12)
    y = layer(x)
    y.backward(gradient)
    place.finish()
    exact_x, exact_gradient = x.detach().cpu().double(), gradient.cpu().double()

    def error_of(values: Any, factor: torch.Tensor, equation: str) -> float:
        exact = torch.einsum(equation, factor, expected)
        size = torch.einsum(equation, factor.abs(), expected.abs())
        return float(((values.detach().cpu().double() - exact).abs() / size).max()) / place.unit

    return error_of(y, exact_x, "tk,nk->tn"), error_of(x.grad, exact_gradient, "tn,nk->tk")


def judge(place: Device, worst: Mapping[str, float], again: str) -> list[Finding]:
    """What the errors of `measure` say; `again` is the command that reinstalls bitsandbytes."""
    figures: dict[str, Any] = {
        "table_error_of_scale": worst["table"],
        "scale_error_of_spread": worst["scales"],
        "forward_error_roundoffs": worst["forward"],
        "backward_error_roundoffs": worst["backward"],
    }
    faults = {
        "NF4 unpacks to other values than the published table": worst["table"] > TABLE_TOLERANCE,
        "double quantisation changes the scales of blocks": worst["scales"] > SCALE_TOLERANCE,
        "the product with a 4-bit layer is wrong": worst["forward"] > place.roundings,
        "the gradient through a 4-bit layer is wrong": worst["backward"] > place.roundings,
    }
    findings = [error(f"{what}, on {place}", remedy=again, **figures) for what, is_wrong in faults.items() if is_wrong]
    if findings:
        return findings
    return [ok(f"NF4 table, product and gradient of a 4-bit layer match float64 on {place}", **figures)]


CHECK = Check(
    name="quantised-linear",
    group="compute",
    proves="NF4 unpacks to the published values; a 4-bit layer's product and gradient match float64.",
    look=look,
    level="compute",
    limit_seconds=90,
    depends_on=(*LOADED, "device", "model"),
)
