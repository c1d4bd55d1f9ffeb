"""Each backend that runs on a CPU, forward and all gradients, against dense float64 attention."""

import pytest
import torch
from training.backends.fast.attention.dense import lay, problem, same_bits, worst
from transformers.masking_utils import sliding_window_causal_mask_function

from loradock.training.backends.fast.attention.base import Attention, Documents, Rule
from loradock.training.backends.fast.attention.flash_cpu import FlashCpu
from loradock.training.backends.fast.attention.mask import visible
from loradock.training.backends.fast.attention.per_document import PerDocument

FULL = Rule(scale=0.3, window=None, softcap=None)
WINDOW = Rule(scale=0.3, window=5, softcap=None)
ITSELF = Rule(scale=0.3, window=1, softcap=None)
WIDE = Rule(scale=0.3, window=33, softcap=None)
SOFTCAP = Rule(scale=0.9, window=None, softcap=2.0)
BOTH = Rule(scale=0.9, window=5, softcap=2.0)
SINKS = torch.tensor([-3.0, 0.5, 2.0, 8.0])
"""One that hardly counts, and one that takes nearly all."""
SUNK = Rule(scale=0.3, window=None, softcap=None, sinks=SINKS)
SUNK_WINDOW = Rule(scale=0.3, window=5, softcap=None, sinks=SINKS)
WAYS = [
    *((FlashCpu(), rule) for rule in (FULL, WINDOW, ITSELF, WIDE, SUNK, SUNK_WINDOW)),
    *((PerDocument(), rule) for rule in (FULL, WINDOW, ITSELF, WIDE, SOFTCAP, BOTH, SUNK, SUNK_WINDOW)),
]
FP32 = 1e-5

every_way = pytest.mark.parametrize(
    ("attention", "rule"),
    WAYS,
    ids=[f"{a.name}-window {r.window}-softcap {r.softcap}{'' if r.sinks is None else '-sinks'}" for a, r in WAYS],
)


@every_way
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_forward_and_gradients_are_those_of_dense_attention(attention: Attention, rule: Rule, groups: int) -> None:
    asked = problem(groups=groups)
    assert worst(asked.solve(attention, rule), asked.reference(rule)) < FP32


@every_way
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_sixteen_bits_stay_within_their_rounding(
    attention: Attention, rule: Rule, dtype: torch.dtype, tolerance: float
) -> None:
    asked = problem(dtype=dtype)
    found = asked.solve(attention, rule)
    assert {tensor.dtype for tensor in found} == {dtype}
    assert worst(found, asked.reference(rule)) < tolerance


@every_way
def test_odd_head_sizes_are_taken(attention: Attention, rule: Rule) -> None:
    asked = problem(size=7)
    assert worst(asked.solve(attention, rule), asked.reference(rule)) < FP32


@pytest.mark.parametrize("attention", [FlashCpu(), PerDocument()], ids=lambda attention: attention.name)
def test_a_window_that_hides_whole_blocks_of_a_long_document_leaves_no_nan(attention: Attention) -> None:
    asked = problem((1100, 40), heads=2, groups=1, size=8)
    assert worst(asked.solve(attention, WINDOW), asked.reference(WINDOW)) < FP32


@every_way
def test_changing_one_document_moves_no_bit_of_another(attention: Attention, rule: Rule) -> None:
    before, asked = problem(), problem()
    start, end = asked.documents.spans()[3]
    for tensor in (asked.q, asked.k, asked.v, asked.dout):
        tensor[start:end] = 1e4
    others = torch.ones(len(asked.q), dtype=torch.bool)
    others[start:end] = False
    found, expected = asked.solve(attention, rule), before.solve(attention, rule)
    assert same_bits(tuple(t[others] for t in found), tuple(t[others] for t in expected))
    assert not torch.equal(found[0][~others], expected[0][~others])


@every_way
def test_a_document_of_aligned_rows_has_the_same_bits_alone_and_among_others(attention: Attention, rule: Rule) -> None:
    together = problem()
    found = together.solve(attention, rule)
    for start, end in together.documents.spans():
        alone = together.part(start, end).solve(attention, rule)
        assert same_bits(tuple(tensor[start:end] for tensor in found), alone)


@every_way
def test_padding_that_nothing_is_learnt_from_gets_gradients_of_zero(attention: Attention, rule: Rule) -> None:
    asked = problem()
    out, *gradients = asked.solve(attention, rule)
    assert out.isfinite().all()
    assert not any(gradient[-5:].any() for gradient in gradients)


@every_way
def test_results_are_contiguous_and_inputs_untouched(attention: Attention, rule: Rule) -> None:
    asked = problem()
    found = asked.solve(attention, rule)
    assert all(tensor.is_contiguous() for tensor in found)
    untouched = problem()
    assert torch.equal(asked.q, untouched.q)
    assert torch.equal(asked.dout, untouched.dout)


def test_a_planted_error_exceeds_the_tolerance() -> None:
    asked = problem()
    found = asked.solve(FlashCpu(), WINDOW)
    shifted = (0, 1, 4, *asked.documents.bounds[3:])
    for planted in ({"left": 5}, {"left": 3}, {"right": -1}, {"bounds": shifted}, {"scale": 0.301}):
        assert worst(found, asked.reference(WINDOW, **planted)) > 100 * FP32


def test_a_sink_that_is_lost_or_anothers_exceeds_the_tolerance() -> None:
    asked = problem()
    found = asked.solve(FlashCpu(), SUNK)
    for planted in (None, SINKS.roll(1), SINKS + 0.01):
        assert worst(found, asked.reference(SUNK, sinks=planted)) > 10 * FP32


@pytest.mark.parametrize(
    ("attention", "rule"),
    [(FlashCpu(), FULL), (FlashCpu(), WIDE), *((PerDocument(), rule) for rule in (FULL, WIDE, SOFTCAP))],
    ids=lambda each: getattr(each, "name", ""),
)
def test_bidirectional_documents_see_all_of_themselves_and_nothing_of_others(attention: Attention, rule: Rule) -> None:
    asked = problem().bidirectional()
    found = asked.solve(attention, rule)
    assert worst(found, asked.reference(rule)) < FP32
    assert worst(found, asked.reference(rule, right=0)) > 100 * FP32


@pytest.mark.parametrize("attention", [FlashCpu(), PerDocument()], ids=lambda attention: attention.name)
def test_a_bidirectional_document_longer_than_the_window_is_refused(attention: Attention) -> None:
    with pytest.raises(ValueError, match=r"a bidirectional document of .* is longer than the"):
        problem().bidirectional().solve(attention, WINDOW)


def test_the_window_is_that_of_transformers() -> None:
    theirs = sliding_window_causal_mask_function(3)
    expected = [[bool(theirs(0, 0, torch.tensor(i), torch.tensor(j))) for j in range(7)] for i in range(7)]
    assert visible(7, 3, device=torch.device("cpu")).tolist() == expected


def test_the_cpu_kernel_refuses_a_softcap_rather_than_ignore_it() -> None:
    with pytest.raises(ValueError, match="no softcap"):
        problem().solve(FlashCpu(), SOFTCAP)


@pytest.mark.parametrize(
    ("bounds", "longest", "message"),
    [
        ((0,), 4, "start at 0 and rise"),
        ((1, 3), 4, "start at 0 and rise"),
        ((0, 5, 3, 7), 9, "start at 0 and rise"),
        ((0, 5, 7), 4, "a document has 5 tokens and longest says 4"),
        ((0, 1, 2, 3, 4), 4, "cu_seqlens holds 3 numbers"),
    ],
)
def test_bounds_that_kernels_would_misread_are_refused(bounds: tuple[int, ...], longest: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Documents(bounds=bounds, cu_seqlens=torch.zeros(3, dtype=torch.int32), longest=longest)


def test_empty_documents_are_passed_over() -> None:
    assert lay([2, 0, 3]).spans() == [(0, 2), (2, 5)]
    asked = problem((2, 0, 3))
    assert worst(asked.solve(FlashCpu(), FULL), asked.reference(FULL)) < FP32
