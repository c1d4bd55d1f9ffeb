"""The interface of the elementwise kernels: what plain torch and Triton both offer, with the same numbers.

Shapes: T tokens (or any rows), n width, H heads, D head width, R rotated width (R <= D), I MLP width, M labelled rows,
V vocabulary, P table rows. All tensors of a call lie on one device; every last dimension has stride 1, rows may be
further apart than they are wide (a slice of a wider tensor). The maths is float32 whatever the input, results are
rounded once to the input's dtype. Nothing waits for the device; every call gives the same bits again; call them where
no gradient is recorded. A trailing underscore means that arguments are overwritten.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from torch import Tensor

Activation = Literal["silu", "gelu_tanh", "gelu"]


class Dropout(NamedTuple):
    """The masks over x [T, n], one before each adapter that reads it.

    What is dropped follows from the token, the column and the adapter alone, so that a mask is made again where it is
    needed and never stored. `keys` int64 [T] are evenly spread random numbers, one a token; the adapters of a call are
    number `first`, `first + 1`, ... of the model. For adapter i, with odd constants G, M, N of 64 bits, m and n of 32:

        z = (key + i G) M,   z = (z ^ z >> 32) N,   z = z ^ z >> 32,   row = z >> 32,   row' = z's low half
        c(j) = j m,   c = (c ^ c >> 15) n,   c = c ^ c >> 16,   column = c(j),   column' = c(-1 - j)
        w = (row | 1) (column | 1)  xor  (row' | 1) (column' | 1)

    Products wrap, shifts keep the sign, w is a signed number of 32 bits: each of its products is a multiply-shift hash
    (Dietzfelbinger et al. 1997), whose weak pairs of columns differ between the two. x is dropped where w is among the
    lowest `share` (0 < share < 1).
    """

    keys: Tensor
    first: int
    share: float

    @property
    def highest_dropped(self) -> int:
        """The largest w that is dropped."""
        return round(self.share * 2**32) - 2**31 - 1

    @property
    def scale(self) -> float:
        """What is kept is multiplied by it."""
        return 1 / (1 - self.share)


class Kernels(Protocol):
    """A module with these functions; `kernels_for` gives the right one."""

    NAME: str

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, offset: bool) -> tuple[Tensor, Tensor]:
        """Root-mean-square normalisation of each row (Zhang and Sennrich 2019, arXiv 1910.07467).

        x [T, n], weight [n], any float dtypes. Gives y [T, n], new, contiguous, in x's dtype, and rstd [T] float32, one
        over the rows' root mean square, which the backward pass needs. offset False is Llama's order: normalise, round
        to x's dtype, multiply by weight. offset True is Gemma's: multiply by 1 + weight in float32, then round.
        """
        ...

    def rms_norm_backward(
        self, dy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, *, offset: bool, into: Tensor | None = None
    ) -> Tensor:
        """The gradient to x alone (weights are frozen): dx [T, n] in x's dtype.

        dy [T, n] the gradient to y; x, rstd, weight as in `rms_norm`. With `into` [T, n] dx is added to it in place, in
        float32 and rounded once, and it is returned: the residual stream's gradient takes dx without a pass of its own.
        """
        ...

    def rope_(
        self, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, sign: int = 1, is_interleaved: bool = False
    ) -> Tensor:
        """Rotary position embedding of x [T, H, D], in place (Su et al. 2021, arXiv 2104.09864); gives x.

        cos, sin [P, R] of any float dtype, a row a position, the second half of each row a copy of the first (as
        transformers makes them); only the first R of D are rotated, column i with i + R/2, or with `is_interleaved`
        column 2i with 2i + 1 by the same angle. positions [T] int32 or int64, below P (not checked). sign -1 applies
        the transpose: the backward pass, also where the tables carry a scale. Heads may be a slice of a wider row: one
        call rotates queries and keys that lie side by side.
        """
        ...

    def gate(self, g: Tensor, u: Tensor, act: Activation) -> Tensor:
        """act(g) * u [T, I], new, contiguous, in g's dtype; g and u [T, I] may be halves of one tensor."""
        ...

    def gate_backward_(self, da: Tensor, g: Tensor, u: Tensor, act: Activation) -> Tensor:
        """Backward of `gate`, in place: g becomes dg, u becomes du, da becomes act(g) * u again and is returned.

        da, g, u [T, I] of one dtype. The activation is made anew so that forward need not keep it: the LoRA gradient of
        the down projection reads it.
        """
        ...

    def clamped_gate(self, gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
        """(u + 1) * g * sigmoid(alpha * g) [T, I], new, contiguous; gate_up [T, 2I] holds g and u in turns (gpt-oss).

        Before, g is cut off above the limit, u above it and below its negative.
        """
        ...

    def clamped_gate_backward_(self, da: Tensor, gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
        """Backward of `clamped_gate`, in place: gate_up becomes its gradient, da the result again and is returned."""
        ...

    def cross_entropy_(
        self,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor,
        *,
        softcap: float | None = None,
        with_gradient: bool = True,
    ) -> Tensor:
        """weights[m] * -log softmax(logits[m])[targets[m]], in nats: losses [M] float32.

        logits [M, V] of any float dtype, overwritten by the gradient of losses.sum() to them, rounded once to their
        dtype (untouched without `with_gradient`). targets [M] int64, each a valid id, also in padding rows (not
        checked). weights [M] float32; a row of weight 0 is padding: loss and gradient exactly 0, whatever it holds.
        With softcap the logits are capped first, cap * tanh(logits / cap) (Gemma 2, arXiv 2408.00118), and the gradient
        is to the logits before it. The online softmax of the fused form is Milakov and Gimelshein's, arXiv 1805.02867.
        """
        ...

    def lora_down(self, x: Tensor, a: Tensor, dropout: Dropout, *, rank: int) -> Tensor:
        """h [T, k * rank], new, in x's dtype: of k adapters, each over x under its own mask, times 1 / (1 - share).

        x [T, n] and a [k * rank, n], contiguous, the A matrices one below the other, are of one dtype.
        """
        ...

    def lora_down_backward_a(self, dh: Tensor, x: Tensor, dropout: Dropout, *, rank: int, out: Tensor) -> None:
        """The gradient to A, [k * rank, n], into `out`, contiguous; dh [T, k * rank] is that to `lora_down`'s h."""
        ...

    def lora_down_backward_x_(self, dx: Tensor, dh: Tensor, a: Tensor, dropout: Dropout, *, rank: int) -> None:
        """Add the gradient to x, of all adapters, to dx [T, n]."""
        ...
