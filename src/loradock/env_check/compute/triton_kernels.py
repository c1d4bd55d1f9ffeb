"""Two small Triton kernels: a vector operation and a matrix product. Imports triton, so only the check imports it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_and_add(x_ptr, y_ptr, out_ptr, count, block: tl.constexpr):
    """out[i] = 2 x[i] + y[i] for i below count."""
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, 2 * x + y, mask=mask)


@triton.jit
def square_product(a_ptr, b_ptr, out_ptr, size: tl.constexpr):
    """out = a b for square float16 matrices, accumulated in float32."""
    rows = tl.arange(0, size)[:, None]
    columns = tl.arange(0, size)[None, :]
    a = tl.load(a_ptr + rows * size + columns)
    b = tl.load(b_ptr + rows * size + columns)
    tl.store(out_ptr + rows * size + columns, tl.dot(a, b))
