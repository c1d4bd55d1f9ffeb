"""Recurrent layers know no documents: a packed row leaks through each kind of them, and the check at the start sees it.

A leak is planted in a model whose recurrent layers are given each document as a row of its own: one layer alone, the
last, gets the documents joined, either for its convolution or for its state.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hybrids import KINDS, built

from loradock.errors import ModelError
from loradock.model import recurrence
from loradock.training import packing_check

pytestmark = pytest.mark.thin(2)

LENGTH, VOCABULARY = 24, 200
TRAINED = 5.0
CONVOLUTION = {"causal_conv1d_fn": 2}
STATES = {
    "torch_chunk_gated_delta_rule": 1,
    "chunk_kimi_delta_attention": 1,
    "mamba2_chunk_scan": 1,
    "mamba_selective_scan": 2,
}
"""transformers' functions by name, and where tokens stand in their arguments, which begin with rows."""
NO_STATE = ("lfm2",)
WITHOUT_ATTENTION = {"granitemoehybrid": {"layer_types": ["linear_attention"] * 2}}
"""Its attention looks into other documents, too: transformers gives its mask no positions."""
DTYPES = ("float32", "bfloat16")


def grown(kind: str, dtype: str) -> Any:
    """A model whose matrices are as large as trained ones: what a state adds is not lost in rounding."""
    model = built(kind, **WITHOUT_ATTENTION.get(kind, {}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(TRAINED)
    return model.to(getattr(torch, dtype))


class Separated:
    """A model whose recurrent layers compute each document of a packed row alone; documents are of one length."""

    def __init__(self, kind: str, dtype: str) -> None:
        self.model = grown(kind, dtype)
        self.documents, self.is_joined = 1, False
        self.model.register_forward_pre_hook(self.count, with_kwargs=True)
        self.mixers = [mixer for mixer, _ in recurrence.mixers(self.model)]
        for mixer in self.mixers:
            mixer.forward = self.separating(mixer.forward)

    def count(self, _: Any, args: Any, given: dict[str, Any]) -> None:
        self.documents = int((given["position_ids"] == 0).sum())

    def separating(self, forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def separated(hidden_states: torch.Tensor, *more: Any, **given: Any) -> torch.Tensor:
            rows = hidden_states.reshape(self.documents, -1, hidden_states.shape[-1])
            return forward(rows, *more, **given).reshape(hidden_states.shape)

        return separated

    def leak(self, functions: dict[str, int], patch: pytest.MonkeyPatch) -> None:
        """Join the documents again for these functions, in the last recurrent layer."""
        last = self.mixers[-1]
        inner, module = last.forward, sys.modules[type(last).__module__]

        def leaking(*args: Any, **given: Any) -> torch.Tensor:
            self.is_joined = True
            out = inner(*args, **given)
            self.is_joined = False
            return out

        last.forward = leaking
        for name, place in functions.items():
            if hasattr(module, name):
                patch.setattr(module, name, self.joining(getattr(module, name), place))

    def joining(self, function: Callable[..., Any], place: int) -> Callable[..., Any]:
        def joined(tensor: Any) -> Any:
            if isinstance(tensor, torch.Tensor) and tensor.dim() > place and tensor.shape[place] == LENGTH:
                return torch.cat(tuple(tensor), dim=place - 1)[None]
            return tensor

        def parted(tensor: Any) -> Any:
            return torch.cat(tensor.chunk(self.documents, dim=place)) if isinstance(tensor, torch.Tensor) else tensor

        def called(*args: Any, **given: Any) -> Any:
            if not self.is_joined:
                return function(*args, **given)
            out = function(*map(joined, args), **{name: joined(each) for name, each in given.items()})
            return tuple(map(parted, out)) if isinstance(out, tuple) else parted(out)

        return called


def checked(model: Any, dtype: str) -> float:
    """The check with two documents."""
    draw = random.Random(3)
    first, second = ([draw.randrange(10, VOCABULARY) for _ in range(LENGTH)] for _ in range(2))
    return packing_check.check(model, first, second, dtype=dtype, vocabulary=VOCABULARY)


@pytest.mark.thin(6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_row_leaks_through_recurrent_layers_and_is_refused(kind: str, dtype: str) -> None:
    with pytest.raises(ModelError, match="packing leaks"):
        checked(built(kind).to(getattr(torch, dtype)), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layers_that_compute_each_document_alone_pass(kind: str, dtype: str) -> None:
    assert checked(Separated(kind, dtype).model, dtype) == 0


@pytest.mark.thin(6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_convolution_that_reaches_back_into_the_last_document_is_refused(
    kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    separated = Separated(kind, dtype)
    separated.leak(CONVOLUTION, monkeypatch)
    with pytest.raises(ModelError, match="packing leaks"):
        checked(separated.model, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NO_STATE])
def test_a_state_that_is_carried_into_the_next_document_is_refused(
    kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    separated = Separated(kind, dtype)
    separated.leak(STATES, monkeypatch)
    with pytest.raises(ModelError, match="packing leaks"):
        checked(separated.model, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_that_share_sums_among_tokens_pass(dtype: str) -> None:
    model = built("qwen3_next", mlp_only_layers=[], num_experts=4, layer_types=["full_attention"] * 2)
    checked(model.to(getattr(torch, dtype)), dtype)
