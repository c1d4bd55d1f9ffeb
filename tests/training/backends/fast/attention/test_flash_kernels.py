"""What backends tell the kernels of a card: against the schemas, on fake tensors, and in numbers by stand-ins."""

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from training.backends.fast.attention.dense import Problem, problem, worst
from training.backends.fast.attention.stand_ins import FlashAttnStandIn, flash_torch_stand_in

from loradock.training.backends.fast.attention.base import Attention, Documents, Rule
from loradock.training.backends.fast.attention.flash_attn import FlashAttn
from loradock.training.backends.fast.attention.flash_torch import BACKWARD, FORWARD, FlashTorch
from loradock.training.backends.fast.attention.per_document import PerDocument

FULL = Rule(scale=0.3, window=None, softcap=None)
WINDOW = Rule(scale=0.3, window=5, softcap=None)
BOTH = Rule(scale=0.9, window=5, softcap=2.0)
SUNK = Rule(scale=0.3, window=5, softcap=None, sinks=torch.tensor([-3.0, 0.5, 2.0, 8.0]))
FP32 = 1e-5


class Launches(TorchDispatchMode):
    """The operators called while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        if func.namespace == "aten":
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["flash-torch", "flash-attn"])
def attention(request: pytest.FixtureRequest) -> Iterator[Attention]:
    stand_in = FlashAttnStandIn()
    with flash_torch_stand_in():
        yield FlashTorch() if request.param == "flash-torch" else FlashAttn(interface=lambda: stand_in)


@pytest.mark.parametrize("rule", [FULL, WINDOW, SUNK], ids=["full", "window", "sinks"])
@pytest.mark.parametrize("size", [16, 20])
def test_kernels_are_told_what_dense_attention_does(attention: Attention, rule: Rule, size: int) -> None:
    asked = problem(size=size)
    assert worst(asked.solve(attention, rule), asked.reference(rule)) < FP32


def test_kernels_are_told_that_documents_are_bidirectional(attention: Attention) -> None:
    asked = problem().bidirectional()
    assert worst(asked.solve(attention, FULL), asked.reference(FULL)) < FP32
    with pytest.raises(ValueError, match="longer than the sliding window of 5"):
        asked.solve(attention, WINDOW)


def test_documents_of_one_token_are_not_taken_for_generation(attention: Attention) -> None:
    asked = problem((1, 1, 1))
    assert worst(asked.solve(attention, FULL), asked.reference(FULL)) < FP32


def test_flash_attn_is_told_the_softcap() -> None:
    asked, stand_in = problem(), FlashAttnStandIn()
    assert worst(asked.solve(FlashAttn(interface=lambda: stand_in), BOTH), asked.reference(BOTH)) < FP32


def test_flash_torch_refuses_a_softcap_rather_than_ignore_it() -> None:
    with pytest.raises(ValueError, match="no softcap"):
        problem().solve(FlashTorch(), BOTH)


def test_flash_attn_is_deterministic_where_torch_is_told_to_be() -> None:
    stand_in = FlashAttnStandIn()
    attention = FlashAttn(interface=lambda: stand_in)
    problem().solve(attention, FULL)
    torch.use_deterministic_algorithms(True)
    try:
        problem().solve(attention, FULL)
    finally:
        torch.use_deterministic_algorithms(False)
    assert stand_in.deterministic == [False, True]


def test_torch_names_the_arguments_as_we_place_them() -> None:
    common = ["cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"]
    windows = ["scale", "window_size_left", "window_size_right"]
    forward = [argument.name for argument in FORWARD._schema.arguments]
    assert forward[:10] == ["query", "key", "value", *common, "return_debug_mask"]
    assert forward[10:13] == windows
    backward = [argument.name for argument in BACKWARD._schema.arguments]
    assert backward[:12] == ["grad_out", "query", "key", "value", "out", "logsumexp", *common]
    assert backward[12:] == ["rng_state", "unused", *windows]


def on_a_card(size: int) -> Problem:
    """Half-precision inputs on a card that is not there; q, k, v are views of one tensor."""
    q, k, v = torch.empty(60, 8, size, device="cuda", dtype=torch.bfloat16).split([4, 2, 2], 1)
    cu_seqlens = torch.empty(9, device="cuda", dtype=torch.int32)
    documents = Documents(bounds=(0, 1, 3, 10, 60), cu_seqlens=cu_seqlens, longest=50)
    return Problem(q=q, k=k, v=v, dout=torch.empty_like(q), documents=documents)


@pytest.mark.parametrize("size", [64, 256])
def test_torch_takes_one_launch_each_way_and_no_copy(size: int) -> None:
    with FakeTensorMode():
        asked = on_a_card(size)
        with Launches() as launches:
            asked.solve(FlashTorch(), WINDOW)
    assert launches.names == ["_flash_attention_forward", "_flash_attention_backward"]


@pytest.mark.parametrize("size", [64, 20])
def test_results_on_a_card_have_the_shapes_and_dtypes_of_the_inputs(size: int) -> None:
    with FakeTensorMode():
        asked = on_a_card(size)
        found = asked.solve(FlashTorch(), FULL)
        for result, like in zip(found, (asked.q, asked.q, asked.k, asked.v), strict=True):
            assert (result.shape, result.dtype, result.device) == (like.shape, like.dtype, like.device)
            assert result.is_contiguous()


@pytest.mark.parametrize("rule", [FULL, WINDOW, BOTH], ids=["full", "window", "softcap"])
def test_document_by_document_reads_nothing_back_from_a_card(rule: Rule) -> None:
    with FakeTensorMode(), Launches() as launches:  # forward only: autograd's engine wants a card that is there
        asked = on_a_card(64)
        out, saved = PerDocument().forward(asked.q, asked.k, asked.v, asked.documents, rule)
    assert (out.shape, saved) == (asked.q.shape, ())
    assert "_local_scalar_dense" not in launches.names
