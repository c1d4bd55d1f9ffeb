"""Statistics of a data set against counts made here, row by row, with the tokenizer alone."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from data.measured import Maker, at, by_name, model, pairs, words, write

from loradock.data.collate import collate
from loradock.data.lengths import histogram
from loradock.data.row_steps import row_steps
from loradock.data.select import fit
from loradock.data.statistics import measure
from loradock.data.steps import BatchShape
from loradock.data.suspicion import fences
from loradock.errors import DataError


def test_tokens_and_percentiles_are_those_of_the_rows(make: Maker, counted: list[list[bool]]) -> None:
    found = make.of(pairs())
    kinds = {
        "tokens": [len(mask) for mask in counted],
        "learned": [sum(mask) for mask in counted],
        "context": [len(mask) - sum(mask) for mask in counted],
    }
    for name, lengths in kinds.items():
        spread, ordered = getattr(found, name), sorted(lengths)
        assert spread.tokens == sum(lengths)
        assert spread.mean == pytest.approx(sum(lengths) / 60)
        expected = {str(share): ordered[math.ceil(share / 100 * 60) - 1] for share in (50, 90, 95, 99)}
        assert spread.percentiles == {**expected, "max": ordered[-1]}
    assert found.label_share == pytest.approx(sum(kinds["learned"]) / sum(kinds["tokens"]))
    assert (found.rows, found.train_rows, found.validation_rows) == (60, 60, 0)
    assert found.formats == {"prompt-completion": 60}


@pytest.mark.parametrize("long_rows", ["truncate", "drop"])
def test_each_length_tells_what_it_really_cuts(make: Maker, counted: list[list[bool]], long_rows: str) -> None:
    corpus = make.corpus(write(make.folder / "rows.jsonl", pairs()), long_rows=long_rows)
    lengths = [1, 8, 20, 40, 90, 300]
    found = measure(corpus, model=model(), max_length=90, lengths=lengths)
    for length in lengths:
        cut = at(found, length).cut
        whole = [mask for mask in counted if len(mask) <= length]
        answerless = [mask for mask in counted if not any(mask[:length])]
        kept = [mask[:length] for mask in counted if any(mask[:length])] if long_rows == "truncate" else whole
        assert cut.rows_whole == len(whole)
        assert cut.rows_cut == len(kept) - len(whole)
        assert cut.rows_dropped == 60 - len(kept)
        assert cut.answers_lost == len(answerless)
        assert cut.tokens_lost == sum(map(len, counted)) - sum(map(len, kept))
        assert cut.learned_tokens_lost == sum(map(sum, counted)) - sum(map(sum, kept))
        assert at(found, length).tokens == sum(map(len, kept))


def test_padding_and_packs_are_those_of_the_batches_that_a_run_makes(make: Maker) -> None:
    corpus = make.corpus(write(make.folder / "rows.jsonl", pairs(140, longest=25)), train={"seed": 3, "micro_batch": 6})
    found = measure(corpus, model=model(), max_length=64, lengths=[])
    fitted = fit(corpus.train.prepared, rows=corpus.train.fitted.rows, max_length=64)
    assert len(fitted.rows) > 3 * 16
    assert [each.micro_batch for each in at(found, 64).paddings] == [1, 4, 6, 8, 16]
    for each in at(found, 64).paddings:
        batches = {
            packing: [
                batch
                for step in row_steps(
                    corpus.train.prepared,
                    fitted=fitted,
                    global_batch=16,
                    shape=BatchShape(micro_batch=each.micro_batch, packing=packing, max_length=64),
                    seed=3,
                    total_steps=math.ceil(len(fitted.rows) / 16),
                )
                for batch in step.micro_batches
            ]
            for packing in (False, True)
        }
        positions = sum(collate(batch, pad_token_id=0)["input_ids"].numel() for batch in batches[False])
        assert (each.passes, each.padded_tokens) == (len(batches[False]), positions)
        assert each.padding_share == pytest.approx(1 - fitted.tokens / positions)
        assert each.packed_passes == len(batches[True])
        assert each.packed_fill == pytest.approx(fitted.tokens / (len(batches[True]) * each.micro_batch * 64))
    assert at(found, 64).full_padding_share == pytest.approx(1 - fitted.tokens / (64 * len(fitted.rows)))
    assert at(found, 64).padded_micro_batch == 6


def test_work_counts_products_by_token_and_attention_by_square(make: Maker, counted: list[list[bool]]) -> None:
    found = make.of(pairs())
    lengths, learned = [len(mask) for mask in counted], sum(map(sum, counted))
    work = at(found, 1024).packed
    assert work.products == pytest.approx(2 * 2 * (2 * 128 * 64) * sum(lengths) + 2 * 2 * 64 * 500 * learned)
    assert work.attention == pytest.approx(3.5 * 2 * 2 * 64 * 2 * sum(n * n for n in lengths) / 2)
    assert at(found, 1024).padded.attention > work.attention


def test_no_row_left_at_a_length_is_a_figure_and_no_error(make: Maker) -> None:
    corpus = make.corpus(write(make.folder / "rows.jsonl", pairs(20)), long_rows="drop")
    found = measure(corpus, model=model(), max_length=2, lengths=[])
    cut = at(found, 2).cut
    assert (cut.rows_dropped, cut.rows_cut, cut.tokens_lost) == (20, 0, found.tokens.tokens)
    assert cut.answers_lost == 20
    assert by_name(found)["left-out"][0] == 20
    assert any(reason.startswith("2 leaves no row") for reason in found.recommendation.reasons)


def test_the_recommended_length_is_the_shortest_that_keeps_what_the_rule_says(make: Maker) -> None:
    rows = [*pairs(398, longest=30), *((words(random.Random(n), 900) + "\n", "An answer.") for n in range(2))]
    found = make.of(rows, positions=1 << 14)
    advice = found.recommendation
    assert advice.needed == advice.max_length < (advice.whole or 0)
    assert advice.setting == f"data.max_length={advice.max_length}"
    lengths = list(range(64, advice.max_length + 1, 64))
    every = measure(make.corpus(make.folder / "rows.jsonl"), model=model(), max_length=64, lengths=lengths)

    def is_good(length: int) -> bool:
        cut = at(every, length).cut
        learned = every.learned.tokens
        return cut.rows_whole >= 0.99 * 400 and cut.learned_tokens_lost <= 0.005 * learned and cut.answers_lost <= 2

    assert [length for length in lengths if is_good(length)] == [advice.max_length]
    assert advice.reasons[0].startswith(f"{advice.max_length} keeps ")


def test_a_length_that_loses_much_of_what_is_learned_is_not_good(make: Maker) -> None:
    draw = random.Random(5)
    rows = [*((words(draw, 8) + "\n", "Yes.") for _ in range(199)), ("Tell a tale.\n", words(draw, 900))]
    advice = make.of(rows, positions=1 << 14)
    assert advice.recommendation.max_length == advice.recommendation.whole == advice.recommendation.needed
    assert at(advice, 256).cut.rows_whole >= 0.99 * 200
    assert at(advice, 256).cut.learned_tokens_lost > 0.005 * advice.learned.tokens


def test_all_is_not_kept_where_that_takes_a_far_longer_length_for_little_work(make: Maker) -> None:
    draw = random.Random(6)
    rows = [*((words(draw, 12) + "\n", "Yes.") for _ in range(399)), (words(draw, 60) + "\n", "No.")]
    corpus = make.corpus(write(make.folder / "rows.jsonl", rows), train={"micro_batch": 1})
    found = measure(corpus, model=model(), max_length=1024)
    advice = found.recommendation
    assert advice.whole
    assert advice.needed
    assert advice.max_length == advice.needed
    assert advice.whole > 2 * advice.needed
    assert at(found, advice.whole).padded.total < 1.05 * at(found, advice.needed).padded.total


def test_all_rows_are_kept_whole_where_that_costs_little(make: Maker) -> None:
    found = make.of([(words(random.Random(n), 100) + "\n", "Yes.") for n in range(50)])
    longest = found.tokens.percentiles["max"]
    assert found.recommendation.max_length == found.recommendation.whole == math.ceil(longest / 64) * 64
    assert at(found, found.recommendation.max_length).cut.rows_whole == 50


def test_a_model_with_too_few_positions_is_the_limit(make: Maker) -> None:
    found = make.of(pairs(40), positions=32)
    assert (found.recommendation.max_length, found.recommendation.needed) == (32, None)
    assert "positions" in found.recommendation.rule
    assert [each.cut.length for each in found.lengths] == [32]


def test_the_bins_hold_every_row_once() -> None:
    for lengths in ([5], [7, 7, 7], list(range(1, 500)), [30] * 999 + [9000], [1, 2, 3, 4], list(range(100, 131))):
        found = histogram(np.array(lengths, dtype=np.int32))
        assert sum(found.rows) == len(lengths)
        assert len(found.edges) == len(found.rows) + 1 <= 20
        assert list(found.edges) == sorted(set(found.edges))
        for first, after, rows in zip(found.edges, found.edges[1:], found.rows, strict=False):
            assert rows == sum(first <= length < after for length in lengths)


def test_fences_lie_beyond_three_spans_of_the_quartiles() -> None:
    low, high = fences(np.array([100] * 50))
    assert (low, high) == (pytest.approx(100 / 2**1.5), pytest.approx(100 * 2**1.5))
    low, high = fences(np.array([64, 64, 128, 256, 256]))
    assert (low, high) == (pytest.approx(64 / 2**6), pytest.approx(256 * 2**6))


def test_a_source_that_changes_in_between_is_refused(make: Maker) -> None:
    rows = pairs(10)
    corpus = make.corpus(write(make.folder / "rows.jsonl", rows))
    for changed in (rows[:9], [*rows, ("a", "b")]):
        write(make.folder / "rows.jsonl", changed)
        with pytest.raises(DataError, match=r"rows\.jsonl changed while it was read"):
            measure(corpus, model=model(), max_length=512)
