"""Documents of text that are split with overlap: context twice, learned once; and what is split without it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from data.measured import MACHINE
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from whole_runs import Silent, train

from loradock import demo
from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.data.collate import IGNORED, collate
from loradock.data.corpus import prepare_corpus
from loradock.data.row_steps import row_steps
from loradock.data.samples.rows import RowSamples
from loradock.data.select import fit
from loradock.data.steps import BatchShape
from loradock.errors import ConfigError, DataError

pytestmark = pytest.mark.thin(2)

BASE = Path(demo.__file__).parent / "base"
TEXT = " ".join(f"word {number} stands here," for number in range(60))
CHAT = [{"role": "user", "content": "say it " * 20}, {"role": "assistant", "content": "I say it " * 40}]
LIMIT = 48


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(BASE)


def corpus(folder: Path, tokenizer: PreTrainedTokenizerBase, *, limit: int = LIMIT, **data: object) -> RowSamples:
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps({"text": each}) + "\n" for each in (TEXT, "short", TEXT[9:]))
    )
    (folder / "chat.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    sources = [{"path": str(folder / name)} for name in ("texts.jsonl", "chat.jsonl")]
    section = {"sources": sources, "cache": str(folder / "cache"), "max_dropped": 1.0, **data}
    config = RunConfig.model_validate({"data": section})
    rows = prepare_corpus(config, tokenizer=tokenizer, max_length=limit, facts=MACHINE).rows
    assert rows
    return rows


@pytest.mark.parametrize("overlap", [0, 1, 2, 7, LIMIT - 1])
def test_each_token_is_learned_once_and_every_window_has_the_context_that_is_asked_for(
    overlap: int, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    rows = corpus(tmp_path, tokenizer, overlap=overlap)
    prepared, fitted = rows.train.prepared, rows.train.fitted
    learned: Counter[tuple[int, int]] = Counter()
    ends: dict[int, int] = {}
    for row, start, length, context in zip(
        *(column.tolist() for column in (fitted.rows, fitted.starts, fitted.lengths, fitted.contexts)), strict=True
    ):
        _, mask = prepared.row(row, start=start, length=length, context=context)
        learned.update((row, start + int(at)) for at in np.flatnonzero(mask))
        assert length <= LIMIT
        if start:
            assert context == (max(1, overlap) if row < 3 else 1), "chats have no overlap"
            assert ends.get(row, start + context) - start == context
        ends[row] = start + length
    assert set(learned.values()) == {1}
    assert len(learned) == prepared.supervised_tokens == fitted.supervised_tokens
    assert (fitted.lost_supervised_tokens, fitted.dropped) == (0, 0)
    assert rows.as_dict()["overlap_tokens"] == (fitted.contexts[fitted.rows < 3].sum() if overlap > 1 else 0)


@pytest.mark.parametrize("packing", [False, True])
def test_labels_of_the_batches_are_those_of_the_windows(
    packing: bool, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    fitted = corpus(tmp_path, tokenizer, overlap=9).train.fitted
    prepared = corpus(tmp_path, tokenizer).train.prepared
    shape = BatchShape(micro_batch=3, packing=packing, max_length=LIMIT)
    steps = row_steps(
        prepared, fitted=fitted, global_batch=5, shape=shape, seed=0, total_steps=len(fitted.rows) // 5 + 1
    )
    labels: Counter[int] = Counter()
    for step in range(steps.steps_per_epoch):
        for batch in steps[step].micro_batches:
            made = collate(batch, pad_token_id=0)["labels"]
            labels.update(made[made != IGNORED].tolist())
            assert batch.supervised_tokens == int((made != IGNORED).sum())
    whole = [ids[mask] for ids, mask in map(prepared.row, range(prepared.rows))]
    assert labels == Counter(np.concatenate(whole).tolist())


def test_without_overlap_samples_and_their_fingerprint_are_what_they_were(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    none, one = (corpus(tmp_path, tokenizer, overlap=overlap).train for overlap in (0, 1))
    more = corpus(tmp_path, tokenizer, overlap=2).train
    assert none.used == one.used != more.used
    assert none.used.startswith(f"{len(none.fitted.rows)} samples, ")
    starts = [each.fitted.starts.tolist() for each in (none, more)]
    assert starts[0] != starts[1]


def test_an_overlap_without_room_or_without_use_is_told(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.overlap 48 leaves nothing to learn in windows of 48 tokens"):
        corpus(tmp_path, tokenizer, overlap=LIMIT)
    said = [note for note in corpus(tmp_path, tokenizer, overlap=9).notes if "overlap" in note]
    assert said[0].startswith("documents of text split with an overlap of 9 tokens (data.overlap): 2; ")
    idle = [note for note in corpus(tmp_path, tokenizer, overlap=9, limit=4096).notes if "overlap" in note]
    assert idle == ["data.overlap has no effect: no document of text is longer than 4,096 tokens"]
    given = [f"model.name={BASE}", f"data.sources={tmp_path / 'texts.jsonl'}", "data.overlap=512"]
    with pytest.raises(ConfigError) as refused:
        load(None, overrides=[*given, "data.max_length=512"])
    assert "--set data.overlap=64" in str(refused.value)
    loaded = load(None, overrides=[*given, "data.long_rows=drop"])
    assert any("data.overlap has no effect: data.long_rows is drop" in warning for warning in loaded.warnings)


def test_a_run_learns_each_token_of_its_documents_once_an_epoch(tmp_path: Path) -> None:
    rows = [json.dumps({"text": TEXT[number:]}) for number in range(6)]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    totals = []
    for overlap in (0, 16):
        settings = ("train.epochs=1", "train.global_batch=8", "lora.rank=2", f"data.max_length={LIMIT}")
        view = Silent()
        result = train(
            tmp_path / f"run{overlap}",
            *settings,
            f"data.overlap={overlap}",
            model=BASE,
            data=tmp_path / "texts.jsonl",
            view=view,
        )
        totals.append(sum(line["supervised_tokens"] for line in result.metrics))
        tokens = result.record["data"]["overlap_tokens"]
        assert bool(tokens) == bool(overlap)
        assert any("an overlap of 16 tokens" in stage for stage in view.stages) == bool(overlap)
    assert totals[0] == totals[1] > 0


def test_what_statistics_reckon_for_a_length_has_the_overlap_in_it(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    prepared = corpus(tmp_path, tokenizer).train.prepared
    rows = np.arange(3)
    counts = [fit(prepared, rows=rows, max_length=LIMIT, overlap=overlap).tokens for overlap in (0, 16)]
    assert counts[1] > counts[0]
