"""The fast engine's Triton kernels, computed at once by their plain forms, from what was handed to the driver.

Triton's own interpreter (FAKEGPU_TRITON=interpret) runs the kernels themselves, a hundred times slower.
"""

from __future__ import annotations

from typing import Any

import torch

from gpu_on_cpu.memory import at


def rms_norm(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    rows, width, stride = v["rows"], v["width"], v["x_stride"] or 1
    assert grid[0] == -(-rows // v["together"])
    x = at(v["x"].value, v["x"].dtype, (rows, width), (stride, 1))
    y, rstd = plain.rms_norm(x, at(v["weight"].value, v["weight"].dtype, (width,)), v["eps"], offset=v["offset"])
    at(v["y"].value, v["y"].dtype, (rows, width)).copy_(y)
    at(v["rstd"].value, torch.float32, (rows,)).copy_(rstd)


def rms_norm_backward(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    dy, x, dx = (matrix(v, name, v["rows"]) for name in ("dy", "x", "dx"))
    rstd = at(v["rstd"].value, torch.float32, (v["rows"],))
    weight = at(v["weight"].value, v["weight"].dtype, (v["width"],))
    into = dx.clone() if v["add"] else None
    dx.copy_(plain.rms_norm_backward(dy, x, rstd, weight, offset=v["offset"], into=into))


def rope(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    tokens, heads, half = grid[0], v["heads"], v["half"]
    x = at(v["x"].value, v["x"].dtype, (tokens, heads, 2 * half), (v["token_stride"], v["head_stride"], 1))
    positions = at(v["positions"].value, v["positions"].dtype, (tokens,))
    most = int(positions.max()) + 1
    cos = at(v["cos"].value, v["cos"].dtype, (most, 2 * half), (v["cos_stride"], 1))
    sin = at(v["sin"].value, v["sin"].dtype, (most, 2 * half), (v["sin_stride"], 1))
    plain.rope_(x, cos, sin, positions, sign=v["sign"], is_interleaved=v["step"] == 2)


def gate(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    g, u = (matrix(v, name, grid[0]) for name in ("g", "u"))
    at(v["a"].value, v["a"].dtype, (grid[0], v["width"])).copy_(plain.gate(g, u, v["act"]))


def gate_backward(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    da, g, u = (matrix(v, name, grid[0]) for name in ("da", "g", "u"))
    plain.gate_backward_(da, g, u, v["act"])


def clamped_gate(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    result = plain.clamped_gate(pairs(v, grid[0]), alpha=v["alpha"], limit=v["limit"])
    at(v["a"].value, v["a"].dtype, (grid[0], v["width"])).copy_(result)


def clamped_gate_backward(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    da = matrix(v, "da", grid[0])
    plain.clamped_gate_backward_(da, pairs(v, grid[0]), alpha=v["alpha"], limit=v["limit"])


def cross_entropy(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    rows = grid[0]
    logits = at(v["logits"].value, v["logits"].dtype, (rows, v["width"]), (v["stride"], 1))
    targets = at(v["targets"].value, torch.int64, (rows,))
    weights = at(v["weights"].value, torch.float32, (rows,))
    softcap = v["cap"] if v["capped"] else None
    losses = plain.cross_entropy_(logits, targets, weights, softcap=softcap, with_gradient=v["gradient"])
    at(v["losses"].value, torch.float32, (rows,)).copy_(losses)


def lora_down(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    a, h, dropout = under_dropout(v, "a", "h")
    assert grid[:2] == (-(-v["rows"] // v["block"]), v["blocks_of_rank"] * v["all_ranks"] // v["rank"])
    h.copy_(plain.lora_down(matrix(v, "x", v["rows"]), a, dropout, rank=v["rank"]))


def lora_down_backward_a(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    da, dh, dropout = under_dropout(v, "da", "dh")
    assert grid[:2] == (-(-v["width"] // v["columns"]), v["blocks_of_rank"] * v["all_ranks"] // v["rank"])
    plain.lora_down_backward_a(dh, matrix(v, "x", v["rows"]), dropout, rank=v["rank"], out=da)


def lora_down_backward_x(v: dict[str, Any], grid: tuple[int, int, int]) -> None:
    from loradock.training.backends.fast.kernels import plain

    a, dh, dropout = under_dropout(v, "a", "dh")
    assert grid[:2] == (-(-v["rows"] // v["block"]), -(-v["width"] // v["columns"]))
    plain.lora_down_backward_x_(matrix(v, "dx", v["rows"]), dh, a, dropout, rank=v["rank"])


def under_dropout(v: dict[str, Any], wide: str, narrow: str) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The adapters' [all_ranks, width], the tokens' [rows, all_ranks], and the masks."""
    from loradock.training.backends.fast.kernels import Dropout

    keys = at(v["keys"].value, torch.int64, (v["rows"],))
    dropout = Dropout(keys, v["first"], 1 - 1 / v["scale"])
    assert dropout.highest_dropped == v["most"]
    shapes = {wide: (v["all_ranks"], v["width"]), narrow: (v["rows"], v["all_ranks"])}
    first, second = (at(v[name].value, v[name].dtype, shape) for name, shape in shapes.items())
    return first, second, dropout


def matrix(v: dict[str, Any], name: str, rows: int) -> torch.Tensor:
    """The argument `name` with its own row stride, as wide as the kernel's `width`."""
    return at(v[name].value, v[name].dtype, (rows, v["width"]), (v[f"{name}_stride"], 1))


def pairs(v: dict[str, Any], rows: int) -> torch.Tensor:
    """The argument `gate_up` with its own row stride, of two columns for each of the kernel's `width`."""
    return at(v["gate_up"].value, v["gate_up"].dtype, (rows, 2 * v["width"]), (v["stride"], 1))


OWN_KERNELS = {
    "rms_norm_kernel": rms_norm,
    "rms_norm_backward_kernel": rms_norm_backward,
    "rope_kernel": rope,
    "gate_kernel": gate,
    "gate_backward_kernel": gate_backward,
    "clamped_gate_kernel": clamped_gate,
    "clamped_gate_backward_kernel": clamped_gate_backward,
    "cross_entropy_kernel": cross_entropy,
    "lora_down_kernel": lora_down,
    "lora_down_backward_a_kernel": lora_down_backward_a,
    "lora_down_backward_x_kernel": lora_down_backward_x,
}
