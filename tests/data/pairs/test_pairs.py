"""Pairs: each layout to the same sample, documents as tokens, batches of one source, and what a step draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from transformers import AutoTokenizer

from loradock import demo
from loradock.cli import cli
from loradock.config.load import load
from loradock.config.sections.embedding import EmbeddingConfig
from loradock.data.collate import Batch
from loradock.data.corpus import prepare_corpus
from loradock.data.formats import RowError, convert_row, detect
from loradock.data.formats.base import Pairs, Side
from loradock.data.pairs.groups import Batches, Groups
from loradock.data.pairs.preparer import Documents, PairTask
from loradock.data.pairs.steps import PairDraw
from loradock.data.pairs.template import resolve
from loradock.data.samples.pairs import PairSamples
from loradock.data.steps import ALONE, BatchShape, Ranks
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ConfigError, DataError, LoradockError
from loradock.machine import Host, probe

BASE = Path(demo.__file__).parent / "base"
SAMPLE = Pairs(Side("Find it", "How tall is K2?"), (Side("", "8,611 m."),), (Side("", "A dog."), Side("", "A cat.")))
LAYOUTS: dict[str, dict[str, Any]] = {
    "pairs": {
        "query": ["Find it", "How tall is K2?"],
        "pos": [["", "8,611 m."]],
        "neg": [["", "A dog."], ["", "A cat."]],
    },
    "pairs, FlagEmbedding": {
        "query": "How tall is K2?",
        "pos": ["8,611 m."],
        "neg": ["A dog.", "A cat."],
        "prompt": "Find it",
    },
    "sentence-transformers": {
        "anchor": "How tall is K2?",
        "positive": "8,611 m.",
        "negative_1": "A dog.",
        "negative_2": "A cat.",
        "prompt": "Find it",
    },
    "tevatron": {
        "query": "How tall is K2?",
        "prompt": "Find it",
        "positive_passages": [{"docid": "1", "title": "", "text": "8,611 m."}],
        "negative_passages": [{"text": "dog.", "title": "A"}, {"text": "A cat."}],
    },
    "swift": {
        "messages": [{"role": "system", "content": "Find it"}, {"role": "user", "content": "How tall is K2?"}],
        "positive_messages": [[{"role": "user", "content": "8,611 m."}]],
        "negative_messages": [[{"role": "user", "content": "A dog."}], [{"role": "user", "content": "A cat."}]],
    },
}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no text": ({"query": "", "pos": ["a"]}, "the text of the query is empty"),
    "white space": ({"query": "q", "pos": ["a"], "neg": ["b", " "]}, "the text of the negative 2 is empty"),
    "no positive": ({"query": "q", "pos": []}, "there is no positive"),
    "three elements": ({"query": ["i", "q", "x"], "pos": ["a"]}, "query is a list of 3; a side is a text, or a pair"),
    "mixed": ({"query": "q", "pos": ["a", ["", "b"]]}, "pos mixes a list and text"),
    "a number": ({"query": "q", "pos": [7]}, r"pos[0] is a number, not a text"),
    "both": ({"query": "q", "pos": ["a"], "neg": ["b", "a"]}, "a positive is among the negatives: 'a'"),
    "no list": ({"query": "q", "pos": "a"}, "pos is text, not a list of passages"),
    "two prompts": ({"query": ["i", "q"], "pos": ["a"], "prompt": "p"}, "the query has an instruction, and there is"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_told_by_its_columns_and_gives_the_same_sample(layout: str) -> None:
    row = LAYOUTS[layout]
    format = detect(row)
    assert format.name == layout.split(",")[0]
    assert convert_row(format, {}, row) == SAMPLE


@pytest.mark.parametrize("case", BAD)
def test_a_row_that_cannot_be_used_says_why(case: str) -> None:
    row, words = BAD[case]
    with pytest.raises(RowError) as error:
        convert_row(detect(row), {}, row)
    assert words in str(error.value)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(BASE)


def documents(tokenizer: Any, template: str = "gritlm") -> Documents:
    embedding = EmbeddingConfig(template=template)
    return Documents(PairTask.of(embedding, spec=TokenizerSpec.of(tokenizer), special="as_text"))


def test_a_document_is_read_with_its_instruction_and_pooled_from_behind_it(tokenizer: Any) -> None:
    made = documents(tokenizer)(Side("Find the words:\n", "river stone"), limit=64)
    text = tokenizer.decode(made.ids)
    assert text == f"{tokenizer.bos_token or ''}<|user|>\nFind the words\n<|embed|>\nriver stone"
    assert tokenizer.decode(made.ids[made.first_pooled :]).strip() == "river stone"


def test_a_long_text_is_cut_and_keeps_instruction_and_end(tokenizer: Any) -> None:
    make = documents(tokenizer, "e5")
    made = make(Side("Find", "river stone " * 200), limit=40)
    assert (len(made.ids), made.is_cut) == (40, True)
    assert made.ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(made.ids).startswith(f"{make._task.template.tokens['prefix']}Instruct: Find\nQuery: river")


@pytest.mark.parametrize("text", ["river stone " * 5000, "z" * 50_000, " " * 40_000 + "river"], ids=len)
def test_what_is_kept_of_a_very_long_text_is_what_the_whole_of_it_begins_with(tokenizer: Any, text: str) -> None:
    make = documents(tokenizer)
    before, after = make._task.template.around("")
    whole, _, _ = make._encoded(before, text, after)
    assert make(Side("", text), limit=32).ids == whole[:32]


def test_an_instruction_that_leaves_no_room_is_refused(tokenizer: Any) -> None:
    with pytest.raises(RowError, match=r"the instruction alone has .* tokens, and a text of at most 8 is embedded"):
        documents(tokenizer)(Side("Find the words that are hidden in all of this", "river"), limit=8)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{{ instruction }}", "writes the text 0 times"), ("{{ text }}{{ text }}", "writes the text 2 times")],
)
def test_a_template_that_does_not_hold_the_text_once_is_refused(
    tokenizer: Any, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=words):
        resolve(str(file), spec=TokenizerSpec.of(tokenizer)).around("x")


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def pairs(name: str, count: int, negatives: int = 3) -> list[dict[str, Any]]:
    return [
        {"query": f"{name} {n}", "pos": [f"yes {name} {n}"], "neg": [f"no {name} {n} {i}" for i in range(negatives)]}
        for n in range(count)
    ]


def corpus(folder: Path, *files: Path, settings: tuple[str, ...] = ()) -> PairSamples:
    asked = ("objective=embedding", "embedding.global_batch=8", f"data.cache={folder / 'cache'}", *settings)
    shortcuts = {"--model": str(BASE), "--data": [str(file) for file in files]}
    config = load(None, overrides=list(asked), shortcuts=shortcuts).config
    words = AutoTokenizer.from_pretrained(BASE)
    found = prepare_corpus(config, tokenizer=words, max_length=64, facts=probe.gather(Host())).leading
    assert isinstance(found, PairSamples)
    return found


def sources(found: PairSamples, batch: Any) -> set[int]:
    starts = [source.start for source in found.train.prepared.sources]
    return {int(np.searchsorted(starts, found.train.groups.first[group], side="right")) for group in batch}


def test_batches_are_of_one_source_and_what_is_left_of_all_is_mixed(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.jsonl", pairs(name, count)) for name, count in (("a", 21), ("b", 13))]
    found = corpus(tmp_path, *files)
    batches = found.batches
    assert (len(batches), batches.left_out) == (4, 2)
    for epoch in range(3):
        made = batches(epoch)
        assert all(len(batch) == 8 for batch in made)
        assert sorted(len(sources(found, batch)) for batch in made) in ([1, 1, 1, 1], [1, 1, 1, 2])
        seen = np.concatenate(made)
        assert len(np.unique(seen)) == len(seen) == 32
    assert any(not np.array_equal(np.concatenate(batches(0)), np.concatenate(batches(epoch))) for epoch in (1, 2))
    assert "2 queries, others in each epoch, are left out" in " ".join(found.notes)


def test_the_only_batch_stays_however_small(tmp_path: Path) -> None:
    found = corpus(tmp_path, write(tmp_path / "a.jsonl", pairs("a", 5)))
    (only,) = found.batches(0)
    assert sorted(only) == [0, 1, 2, 3, 4]
    assert "all 5 queries are one step: embedding.global_batch asks for more" in found.notes


def test_queries_that_have_too_few_negatives_are_counted(tmp_path: Path) -> None:
    rows = [*pairs("few", 3, negatives=1), *pairs("enough", 9)]
    found = corpus(tmp_path, write(tmp_path / "a.jsonl", rows), settings=("embedding.negatives=2",))
    assert "3 queries have fewer hard negatives than embedding.negatives 2, and use those" in found.notes
    assert batch_of(found, np.arange(3)).documents == 9


def batch_of(found: PairSamples, batch: Any, *, micro_batch: int = 2, ranks: Ranks = ALONE) -> Batch:
    shape = BatchShape(micro_batch=micro_batch, packing=True, max_length=64)
    embedding, part = found.config.embedding, found.train
    return PairDraw(part.prepared, part.groups, embedding=embedding, shape=shape, seed=0, ranks=ranks)(batch, epoch=0)


def test_negatives_are_drawn_anew_in_each_epoch_and_none_twice(tmp_path: Path) -> None:
    found = corpus(tmp_path, write(tmp_path / "a.jsonl", pairs("a", 8, negatives=6)))
    groups = found.train.groups
    drawn = [tuple(groups.drawn(3, negatives=2, seed=(0, epoch))) for epoch in range(6)]
    assert all(len(set(each)) == 4 for each in drawn)
    assert len(set(drawn)) > 1
    assert drawn[2] == tuple(groups.drawn(3, negatives=2, seed=(0, 2)))
    assert len(groups.drawn(3, negatives=9, seed=(0, 0))) == 2 + 6
    assert batch_of(found, np.arange(8)).documents == 8 * 3


def test_copies_of_a_querys_own_positive_are_hidden_from_it_alone(tmp_path: Path) -> None:
    rows = pairs("a", 4, negatives=1)
    rows[2]["neg"] = [rows[0]["pos"][0]]
    found = corpus(tmp_path, write(tmp_path / "a.jsonl", rows))
    made = batch_of(found, np.arange(4))
    expected = np.zeros((4, 8), dtype=bool)
    expected[0, 5] = True
    assert np.array_equal(made.relations["hidden"], expected)
    kept = corpus(tmp_path, tmp_path / "a.jsonl", settings=("embedding.duplicates=keep",))
    assert not batch_of(kept, np.arange(4)).relations["hidden"].any()


def test_without_in_batch_negatives_a_query_meets_its_own_passages_alone(tmp_path: Path) -> None:
    found = corpus(tmp_path, write(tmp_path / "a.jsonl", pairs("a", 4)), settings=("embedding.in_batch=false",))
    made = batch_of(found, np.arange(4))
    assert np.array_equal(~made.relations["hidden"], np.kron(np.eye(4, dtype=bool), np.ones((1, 2), dtype=bool)))
    assert made.relations["positives"].tolist() == [0, 2, 4, 6]


def test_all_documents_of_a_step_are_embedded_once_by_one_rank(tmp_path: Path) -> None:
    found = corpus(tmp_path, write(tmp_path / "a.jsonl", pairs("a", 8)))
    places = []
    for rank in range(3):
        made = batch_of(found, np.arange(8), micro_batch=1, ranks=Ranks(world_size=3, rank=rank))
        places += [place for own in made.micro_batches for place in own.places.tolist()]
    assert sorted(places) == list(range(24))


def test_a_weight_shows_a_source_more_often(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.jsonl", pairs(name, 16)) for name in ("a", "b")]
    prepared = corpus(tmp_path, *files, settings=("data.sources.1.weight=2.5",)).train.prepared
    groups = Groups.of(prepared)
    batches = Batches(prepared, groups, chosen=np.arange(32), size=8, seed=0)
    counts = np.bincount(np.concatenate(batches(0) + batches(1)), minlength=32)
    assert counts[:16].tolist() == [2] * 16
    assert counts[16:].sum() == 80
    assert set(counts[16:]) <= {4, 5, 6}


def refused(folder: Path, *settings: str, files: list[Path]) -> LoradockError:
    with pytest.raises((ConfigError, DataError)) as error:
        corpus(folder, *files, settings=settings)
    return error.value


def test_data_of_another_objective_are_refused_with_what_to_ask_for(tmp_path: Path) -> None:
    some = write(tmp_path / "pairs.jsonl", pairs("a", 4))
    rows = write(tmp_path / "rows.jsonl", [{"instruction": "Say a", "output": "a"}] * 4)
    error = refused(tmp_path, "objective=supervised", files=[some])
    assert "holds queries with passages to embed; objective supervised learns nothing of it" in error.what
    assert "--set objective=embedding" in str(error.hint)
    assert "neither queries with passages nor preferences" in refused(tmp_path, files=[rows]).what
    assert "--set objective=gritlm" in str(refused(tmp_path, files=[some, rows]).hint)
    assert "hold no queries with passages" in refused(tmp_path, "objective=gritlm", files=[rows]).what
    assert "hold no rows to answer from" in refused(tmp_path, "objective=gritlm", files=[some]).what


def test_a_step_of_one_passage_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", [{"query": "q", "pos": ["a"]}])
    assert "each query would be compared with its own passage alone" in refused(tmp_path, files=[one]).what


def test_every_bad_row_is_told_with_its_line(tmp_path: Path) -> None:
    rows = [*pairs("a", 3), {"query": "", "pos": ["a"]}, {"query": "q", "pos": []}]
    long = {"query": ["word " * 400, "q"], "pos": ["a"]}
    error = refused(tmp_path, files=[write(tmp_path / "bad.jsonl", [*rows, long])])
    places = [str(problem).split(": ")[0] for problem in error.problems]
    assert places == [f"{tmp_path / 'bad.jsonl'}:{line}" for line in (4, 5, 6)]


def test_data_show_marks_what_is_pooled(tmp_path: Path) -> None:
    file = write(
        tmp_path / "pairs.jsonl", [{"query": ["Find it", "river stone"], "pos": ["stone"], "neg": ["lamp"]}] * 2
    )
    words = ["data", "show", "--set", "objective=embedding", "--model", str(BASE), "--data", str(file), "--row", "1"]
    result = CliRunner().invoke(cli, words, env={"LORADOCK_CACHE": str(tmp_path / "cache")})
    assert result.exit_code == 0, result.stderr
    assert "⟦pooled⟧ (green)" in result.stdout
    assert "Find it\n<|embed|>\n⟦river stone⟧" in result.stdout
    assert "pooled\n" in result.stdout.split("row 1, ")[1]
