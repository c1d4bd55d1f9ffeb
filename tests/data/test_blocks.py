"""Rows that were prepared before, with others: the same bits as prepared alone, and no more work than what is new."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.config.sections.embedding import EmbeddingConfig
from loradock.data import prepare as preparing
from loradock.data.cache import BLOCKS
from loradock.data.pairs.preparer import PairTask
from loradock.data.pool import Preparer, Result, Row
from loradock.data.preferences.preparer import PreferenceTask
from loradock.data.prepare import prepare
from loradock.data.prepared import Prepared
from loradock.data.row_task import Task
from loradock.data.tokenise import TokenizerSpec

pytestmark = pytest.mark.thin(4)

ROWS = 1500


def row(number: int) -> dict[str, Any]:
    if number % 3:
        return {"instruction": f"say {number} 日", "input": "", "output": f"it is {number} <|im_end|>"}
    return {"instruction": f"tell {number}", "input": f"of {number}", "output": f"so it was {number}"}


def pair(number: int) -> dict[str, Any]:
    return {"query": f"what is {number}", "pos": [f"it is {number}"], "neg": [f"no {number}", "never"]}


def answers(number: int) -> dict[str, Any]:
    return {"prompt": f"what is {number}", "chosen": f"it is {number}", "rejected": "never"}


@pytest.fixture
def spec(tokenizers: dict[str, PreTrainedTokenizerFast]) -> TokenizerSpec:
    return TokenizerSpec.of(tokenizers["byte-level"])


class Counting:
    """A task that counts the rows that are prepared."""

    def __init__(self, of: Callable[[DataConfig, TokenizerSpec], Any] = Task.of) -> None:
        self.of, self.rows = of, 0

    def __call__(self, data: DataConfig, spec: TokenizerSpec) -> Any:
        outer, work = self, self.of(data, spec)

        class Counted:
            def __getattr__(self, name: str) -> Any:
                return getattr(work, name)

            def preparer(self) -> Preparer:
                inner = work.preparer()

                def counted(rows: list[Row]) -> Result:
                    outer.rows += len(rows)
                    return inner(rows)

                return counted

        return Counted()


def data_of(folder: Path, rows: Sequence[Any], **settings: Any) -> DataConfig:
    folder.mkdir(exist_ok=True)
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows), encoding="utf-8")
    return DataConfig(sources=(SourceConfig(path=str(file)),), **settings)


def contents(prepared: Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in prepared.directory.iterdir() if path.suffix != ".json"}


def facts(prepared: Prepared) -> dict[str, Any]:
    manifest = json.loads((prepared.directory / "manifest.json").read_text())
    return {name: value for name, value in manifest.items() if name not in ("blocks", "sha256")}


CHANGES: dict[str, tuple[Callable[[list[Any]], list[Any]], int]] = {
    "appended": (lambda rows: [*rows, *map(row, range(9000, 9100))], 800),
    "in front": (lambda rows: [row(9000), *rows], 600),
    "removed": (lambda rows: rows[:700] + rows[707:], 900),
    "changed": (lambda rows: [*rows[:1000], {**rows[1000], "output": "another"}, *rows[1001:]], 600),
    "twice": (lambda rows: [*rows, *rows], 600),
}


@pytest.mark.parametrize(("change", "workers"), [*((change, 1) for change in CHANGES), ("changed", 2)])
def test_an_entry_of_old_and_new_rows_is_that_of_all_of_them_prepared_at_once(
    change: str, workers: int, spec: TokenizerSpec, tmp_path: Path
) -> None:
    make, most = CHANGES[change]
    rows = [row(number) for number in range(ROWS)]
    prepare(data_of(tmp_path / "before", rows), tokenizer=spec, cache_dir=tmp_path / "c")
    data, counting = data_of(tmp_path / "after", make(rows)), Counting()
    task = counting if workers == 1 else Task.of
    found = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c", workers=workers, task=task)
    alone = prepare(data, tokenizer=spec, cache_dir=tmp_path / "alone")
    assert contents(found) == contents(alone)
    assert facts(found) == facts(alone)
    assert counting.rows <= most
    (note,) = set(found.notes) - set(alone.notes)
    assert note.startswith("prepared before, with other rows: ")


def pairs_task(data: DataConfig, spec: TokenizerSpec) -> PairTask:
    return PairTask.of(EmbeddingConfig(), spec=spec, special=data.special_tokens)


KINDS: dict[str, tuple[Callable[[DataConfig, TokenizerSpec], Any], Callable[[int], Any]]] = {
    "documents to embed": (pairs_task, pair),
    "answers to choose between": (PreferenceTask.of, answers),
}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_several_documents_keep_the_lines_of_today(kind: str, spec: TokenizerSpec, tmp_path: Path) -> None:
    task, make = KINDS[kind]
    samples = [make(number) for number in range(ROWS)]
    prepare(data_of(tmp_path / "before", samples), tokenizer=spec, cache_dir=tmp_path / "c", task=task)
    counting = Counting(task)
    data = data_of(tmp_path / "after", [make(9000), *samples])
    found = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c", task=counting)
    alone = prepare(data, tokenizer=spec, cache_dir=tmp_path / "alone", task=task)
    assert contents(found) == contents(alone)
    assert 0 < counting.rows <= 600


def test_another_template_loss_or_version_takes_nothing(
    spec: TokenizerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(number) for number in range(600)]
    prepare(data_of(tmp_path / "before", rows), tokenizer=spec, cache_dir=tmp_path / "c")

    def prepared_of(**settings: Any) -> int:
        counting = Counting()
        data = data_of(tmp_path / "after", [*rows, row(9000)], **settings)
        prepare(data, tokenizer=spec, cache_dir=tmp_path / "c", task=counting)
        return counting.rows

    assert prepared_of(template="chatml") == 601
    assert prepared_of(loss="all") == 601
    monkeypatch.setattr(preparing, "PREPARATION_VERSION", 99)
    assert prepared_of() == 601


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _without_blocks(entry: Path) -> None:
    (entry / BLOCKS).unlink()
    manifest = json.loads((entry / "manifest.json").read_text())
    del manifest["maker"], manifest["blocks"], manifest["sha256"]
    sealed = {**manifest, "sha256": hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()}
    (entry / "manifest.json").write_text(json.dumps(sealed))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a token": lambda entry: _flip(entry / "tokens.i32"),
    "a place": lambda entry: _flip(entry / BLOCKS),
    "no places": lambda entry: (entry / BLOCKS).unlink(),
    "a file that was cut off": lambda entry: (entry / "supervised.u8").write_bytes(b""),
    "an entry of before": _without_blocks,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_nothing_is_taken_of_a_damaged_entry(damage: str, spec: TokenizerSpec, tmp_path: Path) -> None:
    rows = [row(number) for number in range(600)]
    before = prepare(data_of(tmp_path / "before", rows), tokenizer=spec, cache_dir=tmp_path / "c")
    DAMAGES[damage](before.directory)
    counting = Counting()
    data = data_of(tmp_path / "after", [*rows, row(9000)])
    found = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c", task=counting)
    assert counting.rows == 601
    assert contents(found) == contents(prepare(data, tokenizer=spec, cache_dir=tmp_path / "alone"))


def test_an_entry_that_vanishes_or_is_cut_off_while_it_is_taken_from_costs_no_row(
    spec: TokenizerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(number) for number in range(ROWS)]
    before = prepare(data_of(tmp_path / "before", rows), tokenizer=spec, cache_dir=tmp_path / "c")
    data = data_of(tmp_path / "after", [*rows, row(9000)])
    original = preparing.samples

    def cut_in_the_middle(*arguments: Any, **settings: Any) -> Iterator[Any]:
        for number, each in enumerate(original(*arguments, **settings)):
            if number == 800:
                (before.directory / "tokens.i32").write_bytes(b"")
            yield each

    monkeypatch.setattr(preparing, "samples", cut_in_the_middle)
    counting = Counting()
    found = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c", task=counting)
    monkeypatch.undo()
    assert 0 < counting.rows < ROWS
    assert contents(found) == contents(prepare(data, tokenizer=spec, cache_dir=tmp_path / "alone"))


def test_a_block_with_a_refused_row_is_prepared_again_and_its_neighbours_are_not(
    spec: TokenizerSpec, tmp_path: Path
) -> None:
    rows = [row(number) for number in range(ROWS)]
    rows[1000] = {"instruction": "say", "input": "", "output": ""}
    prepare(data_of(tmp_path / "before", rows, on_bad_row="skip"), tokenizer=spec, cache_dir=tmp_path / "c")
    counting = Counting()
    data = data_of(tmp_path / "after", [*rows, row(9000)], on_bad_row="skip")
    found = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c", task=counting)
    alone = prepare(data, tokenizer=spec, cache_dir=tmp_path / "alone")
    assert (contents(found), facts(found)) == (contents(alone), facts(alone))
    assert found.skipped_rows == 1
    assert counting.rows < ROWS
