"""What of a text file is a document: the file, a line or a paragraph; and runs from before there was a choice."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loradock import demo
from loradock.cli import cli
from loradock.config.load import Loaded
from loradock.config.schema import RunConfig
from loradock.config.sections.data import DataConfig, SourceConfig, TextUnit
from loradock.data.formats import Completion
from loradock.data.readers import plain_text
from loradock.data.sources import held_out_files, samples
from loradock.errors import NoCheckpoint, Problem
from loradock.training.run_dir import fingerprint, resume

pytestmark = pytest.mark.thin(1)

BOOK = "\ufeffThe Whale\r\n\r\nCall me\r\n  Ishmael.\r\n\r\n\r\nSome years ago.\r\n"


def rows(path: Path, unit: TextUnit) -> list[tuple[int | None, str]]:
    (source,) = DataConfig.model_validate({"sources": [{"path": str(path)}], "text": unit}).sources
    found = list(samples(source))
    assert all(isinstance(sample, Completion) for _, sample in found), found
    return [(line, sample.completion) for line, sample in found if isinstance(sample, Completion)]


@pytest.mark.parametrize("name", ["book.txt", "book.md", "book.md.gz"])
def test_a_file_a_paragraph_or_a_line_is_a_document(name: str, tmp_path: Path) -> None:
    content = BOOK.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert rows(tmp_path / name, "file") == [(1, "The Whale\n\nCall me\n  Ishmael.\n\n\nSome years ago.")]
    assert rows(tmp_path / name, "paragraph") == [
        (1, "The Whale"),
        (3, "Call me\n  Ishmael."),
        (7, "Some years ago."),
    ]
    assert [line for line, _ in rows(tmp_path / name, "line")] == [1, 3, 4, 7]


def test_files_of_a_directory_are_documents_in_order_and_notes_beside_rows_are_none(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"one of {name}\ntwo\n")
    (tmp_path / "README.md").write_text("what this is")
    (tmp_path / "notes.md").write_text("what I thought")
    assert [text.splitlines()[0] for _, text in rows(tmp_path, "file")] == ["one of a.txt", "one of b.txt"]
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).unlink()
    assert rows(tmp_path, "file") == [(1, "what I thought")], "a hub's card is no document"


def test_a_file_beyond_the_limit_of_a_row_is_refused_with_the_key_and_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_text, "MAX_ROW_BYTES", 2**20)
    path = tmp_path / "book.txt"
    path.write_text("word " * 1000 + "\n\n" + "word " * 2**18)
    (source,) = DataConfig.model_validate({"sources": [{"path": str(path)}], "text": "file"}).sources
    ((_, problem),) = samples(source)
    assert isinstance(problem, Problem)
    assert problem.what == "as one document the file is longer than 1 MiB"
    assert problem.hint == "--set data.text=paragraph"
    path.write_text("\n\n".join(["word " * 1000] * 300))
    assert len(rows(path, "paragraph")) == 300


def test_a_byte_that_is_no_utf_8_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(b"good\nbad \xe9\n")
    ((line, problem),) = samples(SourceConfig(path=str(tmp_path / "book.txt")).with_text_unit("file"))
    assert (line, isinstance(problem, Problem) and problem.line) == (2, 2)


def test_held_out_files_are_read_as_what_is_trained_on() -> None:
    (file,) = held_out_files(DataConfig.model_validate({"validation": "held.txt", "text": "paragraph"}))
    assert file.text_unit == "paragraph"
    assert SourceConfig(path="questions.txt").text_unit == "line", "questions and passages are lines"


def test_stats_counts_one_document_and_says_what_it_begins_and_ends_with(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORADOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text(BOOK)
    counts: dict[str, int] = {}
    for unit in ("file", "line", "paragraph"):
        asked = ["data", "stats", "--model", str(llama), "--data", str(tmp_path / "book.txt")]
        ended = CliRunner().invoke(cli, [*asked, *([] if unit == "file" else ["--set", f"data.text={unit}"]), "--json"])
        assert ended.exit_code == 0, ended.output
        assert f"text: each {unit} is a document" in ended.stderr
        assert "ends with EOS" in ended.stderr
        counts[unit] = json.loads(ended.stdout)["rows"]
    assert counts == {"file": 1, "line": 4, "paragraph": 3}


def asked(path: str, **data: Any) -> RunConfig:
    return RunConfig.model_validate({"model": {"name": "./base"}, "data": {"sources": [{"path": path}], **data}})


def recorded_before(directory: Path, config: RunConfig) -> dict[str, Any]:
    """A record as it was before `data.text`."""
    content = config.model_dump(mode="json")
    del content["data"]["text"]
    directory.mkdir()
    record = {"config": content, "status": "interrupted", "run_id": "1"}
    (directory / "run.json").write_text(json.dumps(record))
    (directory / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    return record


def test_a_run_from_before_the_choice_goes_on_by_lines_or_is_refused_by_name(tmp_path: Path) -> None:
    record = recorded_before(tmp_path / "run", asked("book.txt"))
    assert resume.recorded(tmp_path / "run").config.data.text == "line"
    assert resume.same(asked("book.txt", text="line"), record, allowed=(), directory=tmp_path) == {}
    with pytest.raises(NoCheckpoint) as refused:
        resume.same(asked("book.txt"), record, allowed=(), directory=tmp_path)
    assert "data.text was line, now file" in str(refused.value)
    assert str(refused.value.hint).startswith("--set data.text=line continues it as it began; ")
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.md").write_text("a line\n")
    folder = str(tmp_path / "books")
    before = recorded_before(tmp_path / "second", asked(folder))
    with pytest.raises(NoCheckpoint, match=r"data\.text was line, now file"):
        resume.same(asked(folder), before, allowed=(), directory=tmp_path)
    changed = asked("book.txt").model_copy(update={"output": str(tmp_path / "run")})
    loaded = Loaded(config=changed, origins={}, warnings=())
    with pytest.raises(NoCheckpoint):
        resume.look(loaded, parent=None, name="demo", must_exist=True, allowed=())


def test_a_run_without_text_files_has_no_such_field(tmp_path: Path) -> None:
    record = recorded_before(tmp_path / "run", asked("rows.jsonl"))
    assert resume.same(asked("rows.jsonl"), record, allowed=(), directory=tmp_path) == {}
    assert "data.text" not in fingerprint.of_config(asked("rows.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "learned"),
    [
        ("book.txt", "One line of a book.\n" * 9, "whole texts"),
        ("rows.jsonl", '{"prompt": "a", "completion": "b"}\n' * 9, "assistant turns and completions, not prompts"),
    ],
)
def test_it_is_told_whether_whole_texts_are_learned(name: str, content: str, learned: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    words = ("data", "show", "--model", str(Path(demo.__file__).parent / "base"), "--data", str(tmp_path / name))
    shown = CliRunner().invoke(cli, [*words, "--set", f"data.cache={tmp_path / 'cache'}"])
    assert f"%): {learned} (data.loss auto)" in shown.output
