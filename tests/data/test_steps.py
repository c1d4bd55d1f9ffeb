"""Which samples each optimiser step sees, over epochs, sources, weights, packing and ranks."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from itertools import accumulate, pairwise, zip_longest
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.collate import collate
from loradock.data.prepare import prepare
from loradock.data.prepared import Prepared
from loradock.data.row_steps import RowTurns, row_steps, steps_per_epoch
from loradock.data.select import EpochOrder, fit, split
from loradock.data.steps import BatchShape, Ranks, Step, Steps
from loradock.errors import ConfigError, DataError

SIZES = {"a": 61, "b": 40, "c": 9}


def build(folder: Path, tokenizer: PreTrainedTokenizerFast, weights: dict[str, float]) -> Prepared:
    sources = []
    for name, size in SIZES.items():
        path = folder / f"{name}.jsonl"
        rows = [{"prompt": f"{name}{i} " + "x " * (i % 7), "completion": "yes " * (1 + i % 5)} for i in range(size)]
        path.write_text("\n".join(json.dumps(row) for row in rows))
        sources.append(SourceConfig(path=str(path), weight=weights[name]))
    return prepare(DataConfig(sources=tuple(sources)), tokenizer=tokenizer, cache_dir=folder / "cache")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tokenizers: dict[str, PreTrainedTokenizerFast]) -> Prepared:
    """110 rows of three sources with weights 1, 2.5 and 0.5."""
    return build(tmp_path_factory.mktemp("steps"), tokenizers["byte-level"], {"a": 1, "b": 2.5, "c": 0.5})


def train_steps(
    prepared: Prepared,
    *,
    micro_batch: int = 3,
    packing: bool = False,
    global_batch: int = 16,
    world_size: int = 1,
    rank: int = 0,
    total_steps: int = 40,
) -> Steps:
    return row_steps(
        prepared,
        fitted=fit(prepared, rows=np.arange(prepared.rows), max_length=24),
        global_batch=global_batch,
        shape=BatchShape(micro_batch=micro_batch, packing=packing, max_length=24),
        seed=5,
        total_steps=total_steps,
        ranks=Ranks(world_size=world_size, rank=rank),
    )


def rows_of(step: Step) -> list[int]:
    return [row for batch in step.micro_batches if not batch.is_idle for row in batch.rows.tolist()]


def row_ids(step: Step) -> list[int]:
    return step.batches["rows"].row_ids.tolist()


def test_an_epoch_sees_each_row_as_often_as_its_weight_says(prepared: Prepared) -> None:
    fitted = fit(prepared, rows=np.arange(prepared.rows), max_length=24)
    order = EpochOrder(prepared, fitted=fitted, seed=1)
    epochs = [Counter(order(epoch).tolist()) for epoch in range(4)]
    assert len(order) == 61 + 2 * 40 + 20 + 4
    for seen in epochs:
        assert seen.total() == len(order)
        assert all(seen[row] == 1 for row in range(61))
        assert Counter(seen[row] for row in range(61, 101)) == {2: 20, 3: 20}
        assert Counter(seen[row] for row in range(101, 110)) == {1: 4, 0: 5}
    for first, second in (epochs[:2], epochs[2:]):
        assert all(first[row] + second[row] == 5 for row in range(61, 101))
        assert all(first[row] + second[row] <= 1 for row in range(101, 110))
    assert epochs[0] != epochs[2]
    assert not np.array_equal(order(0)[:20], order(1)[:20])
    assert np.array_equal(order(3), EpochOrder(prepared, fitted=fitted, seed=1)(3))
    assert not np.array_equal(order(0), EpochOrder(prepared, fitted=fitted, seed=2)(0))


def test_sources_are_shuffled_together(prepared: Prepared) -> None:
    fitted = fit(prepared, rows=np.arange(prepared.rows), max_length=24)
    first_half = EpochOrder(prepared, fitted=fitted, seed=1)(0)[:80]
    assert 20 < np.count_nonzero(first_half < 61) < 45


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_ids_seen_over_epochs_equal_the_order_whatever_the_ranks_and_packing(
    prepared: Prepared, packing: bool, world_size: int
) -> None:
    fitted = fit(prepared, rows=np.arange(prepared.rows), max_length=24)
    order = EpochOrder(prepared, fitted=fitted, seed=5)
    ranks = [train_steps(prepared, packing=packing, world_size=world_size, rank=rank) for rank in range(world_size)]
    per_epoch = steps_per_epoch(len(order), global_batch=16)
    for index in range(40):
        epoch, step = divmod(index, per_epoch)
        wanted = fitted.rows[order(epoch)[step * 16 : (step + 1) * 16]].tolist()
        views = [steps[index] for steps in ranks]
        assert all(row_ids(view) == wanted and view.epoch == epoch for view in views)
        assert sorted(row for view in views for row in rows_of(view)) == sorted(wanted)
        assert all(view.micro_batches for view in views)
        batches = [batch for view in views for batch in view.micro_batches if not batch.is_idle]
        assert views[0].supervised_tokens == sum(batch.supervised_tokens for batch in batches)
        assert views[0].tokens == sum(batch.tokens for batch in batches)
        assert views[0].samples == len(wanted)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 9])
def test_ranks_take_the_micro_batches_of_a_step_in_turn(prepared: Prepared, packing: bool, world_size: int) -> None:
    ranks = [train_steps(prepared, packing=packing, world_size=world_size, rank=r) for r in range(world_size)]
    for index in (0, 3, 12):
        taken = [[batch for batch in steps[index].micro_batches if not batch.is_idle] for steps in ranks]
        turns = [batch for turn in zip_longest(*taken) for batch in turn if batch is not None]
        assert [row for batch in turns for row in batch.rows.tolist()] == row_ids(ranks[0][index])


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("processes", [2, 3, 8])
def test_the_process_with_the_most_to_do_has_as_little_as_can_be(packing: bool, processes: int) -> None:
    rng = np.random.default_rng(processes)
    shape = BatchShape(micro_batch=4, packing=packing, max_length=64)
    for samples in (1, 7, 16, 40):
        lengths = rng.integers(1, 65, samples).tolist()
        sizes = lengths if packing else [1] * samples
        groups = shape.groups(lengths, processes=processes)
        turns = -(-len(shape.groups(lengths)) // processes)
        assert [index for first, last in groups for index in range(first, last)] == list(range(samples))
        assert len(groups) <= turns * processes
        assert max(sum(sizes[first:last]) for first, last in groups) == smallest_of_largest(sizes, turns * processes)


def smallest_of_largest(sizes: list[int], parts: int) -> int:
    """Of all ways to cut `sizes` into at most `parts` runs, the smallest sum of the largest one: tried one by one."""
    best = [[0, *accumulate(sizes)]]
    for _ in range(parts - 1):
        last = best[-1]
        row = [min(max(last[cut], sum(sizes[cut:end])) for cut in range(end + 1)) for end in range(len(sizes) + 1)]
        best.append(row)
    return best[-1][-1]


def test_a_rank_without_work_gets_one_idle_batch_without_labels(prepared: Prepared) -> None:
    step = train_steps(prepared, micro_batch=16, world_size=17, rank=16)[0]
    (batch,) = step.micro_batches
    assert batch.is_idle
    assert batch.supervised_tokens == 0
    assert step.supervised_tokens > 0
    assert (collate(batch, pad_token_id=0)["labels"] == -100).all()


def test_any_step_can_be_asked_for_at_once_and_the_end_is_the_end(prepared: Prepared) -> None:
    forwards, fresh = train_steps(prepared), train_steps(prepared)
    listed = [row_ids(forwards[index]) for index in range(len(forwards))]
    assert len(listed) == 40
    assert row_ids(fresh[33]) == listed[33]
    assert row_ids(pickle.loads(pickle.dumps(fresh))[7]) == listed[7]
    with pytest.raises(IndexError):
        forwards[40]
    assert [forwards[i].samples for i in range(forwards.steps_per_epoch)][-1] == (61 + 2 * 40 + 20 + 4) % 16


def test_packs_keep_order_and_budget_and_close_only_when_full(prepared: Prepared) -> None:
    steps = train_steps(prepared, packing=True, micro_batch=2)
    for index in range(20):
        step = steps[index]
        assert [row for batch in step.micro_batches for row in batch.rows.tolist()] == row_ids(step)
        assert all(batch.tokens <= 2 * 24 for batch in step.micro_batches)
        for batch, following in pairwise(step.micro_batches):
            assert batch.tokens + int(following.lengths[0]) > 2 * 24


def test_a_packed_batch_restarts_positions_and_never_learns_a_documents_first_token(prepared: Prepared) -> None:
    for multiple in (1, 8):
        batch = train_steps(prepared, packing=True)[2].micro_batches[0]
        tensors = collate(batch, pad_token_id=9, pad_to_multiple=multiple)
        ids, labels, positions, start = [], [], [], 0
        for row_ids, mask in batch.samples():
            length = len(row_ids)
            ids += row_ids[:length].tolist()
            labels += [-100, *(int(t) if m else -100 for t, m in zip(row_ids[1:length], mask[1:length], strict=True))]
            positions += range(length)
            start += length
        padding = -start % multiple
        assert tensors["input_ids"].tolist() == [ids + [9] * padding]
        assert tensors["labels"].tolist() == [labels + [-100] * padding]
        assert tensors["position_ids"].tolist() == [positions + list(range(padding))]
        assert tensors["seq_lengths"].tolist() == [*batch.lengths.tolist(), *([padding] if padding else [])]
        assert int((tensors["labels"] != -100).sum()) == batch.supervised_tokens


def test_a_padded_batch_holds_each_row_from_the_left(prepared: Prepared) -> None:
    batch = train_steps(prepared)[1].micro_batches[1]
    tensors = collate(batch, pad_token_id=9, pad_to_multiple=8)
    assert tensors["input_ids"].shape[1] % 8 == 0
    for index, (row, length) in enumerate(zip(batch.rows.tolist(), batch.lengths.tolist(), strict=True)):
        ids, mask = prepared.row(row, length=length)
        assert tensors["input_ids"][index, :length].tolist() == ids.tolist()
        assert tensors["labels"][index, :length].tolist() == np.where(mask, ids, -100).tolist()
        assert (tensors["input_ids"][index, length:] == 9).all()
        assert tensors["attention_mask"][index].tolist() == [1] * length + [0] * (tensors["labels"].shape[1] - length)
        assert (tensors["labels"][index, length:] == -100).all()
    assert int((tensors["labels"] != -100).sum()) == batch.supervised_tokens


def test_a_split_is_seeded_proportional_and_never_empty(prepared: Prepared) -> None:
    train, held_out = split(prepared, validation=0.2, seed=1)
    assert sorted([*train, *held_out]) == list(range(110))
    assert Counter(np.digitize(held_out, [61, 101]).tolist()) == {0: 12, 1: 8, 2: 2}
    assert np.array_equal(split(prepared, validation=0.2, seed=1)[1], held_out)
    assert not np.array_equal(split(prepared, validation=0.2, seed=2)[1], held_out)
    assert [len(rows) for rows in split(prepared, validation=30, seed=1)] == [80, 30]
    assert len(split(prepared, validation=0.0001, seed=1)[1]) == 1
    assert len(split(prepared, validation=0, seed=1)[1]) == 0
    with pytest.raises(ConfigError, match="leaves none to train on"):
        split(prepared, validation=110, seed=1)


def test_over_long_rows_are_counted_and_cut_or_dropped(prepared: Prepared) -> None:
    rows = np.arange(prepared.rows)
    full = np.diff(prepared.offsets)
    masks = [prepared.row(int(row))[1] for row in rows]
    limit = int(np.median(full))
    cut = fit(prepared, rows=rows, max_length=limit, long_rows="truncate")
    kept = [row for row in rows if masks[row][:limit].any()]
    assert cut.rows.tolist() == kept
    assert cut.lengths.tolist() == [min(full[row], limit) for row in kept]
    assert cut.learned.tolist() == [masks[row][:limit].sum() for row in kept]
    assert cut.over_long == np.count_nonzero(full > limit) > 0
    assert cut.dropped == cut.nothing_learned == 110 - len(kept)
    assert cut.lost_tokens == full.sum() - cut.tokens
    assert cut.lost_supervised_tokens == prepared.supervised_tokens - cut.supervised_tokens
    dropped = fit(prepared, rows=rows, max_length=limit, long_rows="drop")
    assert dropped.rows.tolist() == np.flatnonzero(full <= limit).tolist()
    assert dropped.lost_tokens == full[full > limit].sum()
    with pytest.raises(DataError, match=r"--set data\.max_length=auto"):
        fit(prepared, rows=rows, max_length=1)


@pytest.mark.parametrize("limit", [2, 5, 9])
def test_over_long_rows_are_split_and_every_supervised_token_is_learned_once(prepared: Prepared, limit: int) -> None:
    rows = np.arange(prepared.rows)
    fitted = fit(prepared, rows=rows, max_length=limit)
    assert fitted.supervised_tokens == prepared.supervised_tokens
    assert fitted.lost_supervised_tokens == fitted.dropped == 0
    assert fitted.lengths.max() <= limit
    assert len(fitted.rows) > prepared.rows
    learned: Counter[tuple[int, int]] = Counter()
    for row, start, length in zip(fitted.rows.tolist(), fitted.starts.tolist(), fitted.lengths.tolist(), strict=True):
        ids, mask = prepared.row(row, start=start, length=length)
        assert len(ids) == length
        assert not mask[0], "nothing comes before it that could predict it"
        learned.update((row, start + int(at)) for at in np.flatnonzero(mask))
    assert set(learned.values()) == {1}
    assert learned.keys() == {(row, int(at)) for row in rows.tolist() for at in np.flatnonzero(prepared.row(row)[1])}
    last = {row: start + length for row, start, length in zip(fitted.rows, fitted.starts, fitted.lengths, strict=True)}
    assert all(last[row] == np.diff(prepared.offsets)[row] for row in rows), "a row's end is the end of a window"


@pytest.mark.parametrize("packing", [False, True])
def test_evaluation_sees_every_row_once_and_all_ranks_take_equally_many_batches(
    prepared: Prepared, packing: bool
) -> None:
    fitted = fit(prepared, rows=np.arange(0, 110, 3), max_length=24)
    for world_size in (1, 2, 3):
        ranks = [
            RowTurns(
                prepared,
                fitted=fitted,
                shape=BatchShape(micro_batch=4, packing=packing, max_length=24),
                ranks=Ranks(world_size=world_size, rank=rank),
            )
            for rank in range(world_size)
        ]
        batches = [[micro_batch for turn in rank for micro_batch in turn.micro_batches] for rank in ranks]
        assert {len(mine) for mine in batches} == {len(rank) for rank in ranks} == {len(ranks[0])}
        busy = [batch for mine in batches for batch in mine if not batch.is_idle]
        assert sorted(row for batch in busy for row in batch.rows.tolist()) == fitted.rows.tolist()
        assert sum(batch.supervised_tokens for batch in busy) == fitted.supervised_tokens


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_turn_of_the_ranks_is_of_one_validation_set(prepared: Prepared, world_size: int) -> None:
    """Of the set's source; the sums of a turn are then those of one set, whichever rank has them."""
    parts = [replace(prepared.sources[0], start=0, stop=30), replace(prepared.sources[0], start=30, stop=prepared.rows)]
    several = replace(prepared, sources=tuple(parts))
    fitted = fit(several, rows=np.arange(several.rows), max_length=24)
    shape = BatchShape(micro_batch=4, packing=False, max_length=24)
    every_rank = [Ranks(world_size=world_size, rank=rank) for rank in range(world_size)]
    ranks = [RowTurns(several, fitted=fitted, shape=shape, names=("one", "two"), ranks=each) for each in every_rank]
    seen: dict[int, list[int]] = {0: [], 1: []}
    for rank in ranks:
        assert len(list(rank)) == len(ranks[0])
        for turn in rank:
            (batch,) = turn.micro_batches
            seen[turn.set_index] += [] if batch.is_idle else batch.rows.tolist()
    assert {place: sorted(rows) for place, rows in seen.items()} == {
        0: fitted.rows[fitted.rows < 30].tolist(),
        1: fitted.rows[fitted.rows >= 30].tolist(),
    }
