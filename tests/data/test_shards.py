"""Sources of several files, JSON lines in a .json file, plain text, and rows from standard input."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import make_llama, write_rows
from transformers import PreTrainedTokenizerFast

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.formats import Completion, Conversation
from loradock.data.prepare import prepare
from loradock.data.read import chosen, digest, files, shown_files
from loradock.data.shards import told
from loradock.data.sources import samples
from loradock.data.standard_input import spooled
from loradock.data.text_statistics import measure_texts
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import DataError, InputMissing, Problem

BAD = '{"instruction": "Add."}'


def row(number: int) -> dict[str, str]:
    return {"instruction": f"Say {number}.", "output": str(number)}


def line(number: int) -> str:
    return json.dumps(row(number))


def loaded(path: object) -> list[Any]:
    return [found for _, found in samples(SourceConfig(path=str(path)))]


def answers(found: list[Any]) -> list[str]:
    assert all(isinstance(each, Conversation) for each in found), found
    return [each.messages[-1].content for each in found]


def jsonl(folder: Path) -> None:
    for shard in range(3):
        (folder / f"part-{shard}.jsonl").write_text("".join(f"{line(2 * shard + n)}\n" for n in range(2)))


def parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for shard in range(3):
        pq.write_table(pa.Table.from_pylist([row(2 * shard + n) for n in range(2)]), folder / f"{shard}.parquet")


def compressed(folder: Path) -> None:
    for shard in range(3):
        text = "".join(f"{line(2 * shard + n)}\n" for n in range(2))
        (folder / f"{shard}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("make", [jsonl, parquet, compressed])
def test_a_directory_of_shards_and_a_pattern_give_the_rows_of_all_files_by_name(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    make(folder)
    (folder / "README.md").write_text("what this is")
    (folder / ".hidden.csv").write_text("a,b\n")
    assert answers(loaded(folder)) == answers(loaded(folder / "*[0-9].*")) == list("012345")
    assert answers(loaded(tmp_path / "**" / "*2.*")) == ["4", "5"]
    before = digest(SourceConfig(path=str(folder)))
    files(SourceConfig(path=str(folder)))[2].unlink()
    assert digest(SourceConfig(path=str(folder))) != before


def test_a_problem_and_a_suspicious_row_of_a_shard_stand_at_their_own_file_and_line(
    tmp_path: Path, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> None:
    jsonl(tmp_path)
    spec = TokenizerSpec.of(tokenizers["byte-level"])
    data = DataConfig(sources=(SourceConfig(path=str(tmp_path)),))
    prepared = prepare(data, tokenizer=spec, cache_dir=tmp_path / "cache")
    assert [prepared.place(index) for index in (0, 3, 5)] == [
        f"{tmp_path}/part-{shard}.jsonl:{number}" for shard, number in ((0, 1), (1, 2), (2, 2))
    ]
    (tmp_path / "part-1.jsonl").write_text(f"{line(2)}\n{line(3)}{'!' * 900}\n")
    (tmp_path / "part-1.jsonl").write_text(json.dumps({"instruction": "a" * 900, "output": "b"}))
    assert measure_texts(data.sources).longest_row == f"{tmp_path}/part-1.jsonl:1"
    (tmp_path / "part-1.jsonl").write_text(f"{line(2)}\n\n{BAD}\n")
    (tmp_path / "part-2.jsonl").write_text(f"{{\n{line(4)}\n")
    with pytest.raises(DataError) as caught:
        prepare(data, tokenizer=spec, cache_dir=tmp_path / "cache")
    places = [problem.place for problem in caught.value.problems]
    assert places == [f"{tmp_path}/part-1.jsonl:3", f"{tmp_path}/part-2.jsonl:1"]


@pytest.mark.parametrize(
    ("names", "what", "hint"),
    [
        (("a.jsonl", "b.jsonl", "c.csv"), "several kinds of files (2 JSONL, 1 CSV)", "/*.jsonl"),
        (("a-0.jsonl", "test-0.jsonl"), "the files of several splits (no split: a-0.jsonl; test: ", "/a-0.jsonl"),
        (("data/a.jsonl",), "a directory without files of rows", "/**/*.jsonl"),
        (("notes.rst",), "a directory without files of rows", "known: .json"),
    ],
)
def test_a_directory_that_could_mean_several_things_is_refused_with_a_pattern(
    names: tuple[str, ...], what: str, hint: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(line(1))
    with pytest.raises(DataError) as caught:
        files(SourceConfig(path=str(tmp_path)))
    assert what in caught.value.what
    assert hint in str(caught.value.hint)


def test_a_pattern_that_matches_nothing_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match=r"no file matches .*/rows-\*\.jsonl"):
        files(SourceConfig(path=str(tmp_path / "rows-*.jsonl")))
    (tmp_path / "rows[1].jsonl").write_text(line(1))
    assert answers(loaded(tmp_path / "rows[1].jsonl")) == ["1"]


@pytest.mark.parametrize("folder", ["rows [v2]", "what?", "a*"])
@pytest.mark.parametrize("tail", ["*.jsonl", "[ab].jsonl", "**/*.jsonl", "d[1]/?.jsonl"])
def test_signs_of_a_pattern_in_the_name_of_a_folder_that_is_there_are_of_the_name(
    folder: str, tail: str, tmp_path: Path
) -> None:
    """The other folders are those that the name would match as a pattern."""
    for place in (folder, "rows v", "what1", "ab"):
        for name in ("a.jsonl", "b.jsonl", "d[1]/c.jsonl", "d1/z.jsonl"):
            (tmp_path / place / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / place / name).write_text(line(("a", "b", "c", "z").index(Path(name).stem)))
    deep = [tmp_path / folder / "d1" / "z.jsonl", tmp_path / folder / "d[1]" / "c.jsonl"]
    plain = [tmp_path / folder / "a.jsonl", tmp_path / folder / "b.jsonl"]
    expected = {"*.jsonl": plain, "[ab].jsonl": plain, "**/*.jsonl": [*plain, *deep], "d[1]/?.jsonl": deep[1:]}
    assert files(SourceConfig(path=str(tmp_path / folder / tail))) == expected[tail]


def test_a_hint_for_a_folder_with_brackets_is_followed_and_a_slip_below_it_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "[v2]" / "below").mkdir(parents=True)
    (tmp_path / "[v2]" / "below" / "rows.jsonl").write_text(line(1))
    with pytest.raises(DataError) as caught:
        files(SourceConfig(path=str(tmp_path / "[v2]")))
    (named,) = shlex.split(str(caught.value.hint).partition("a pattern reads them: ")[2])
    assert files(SourceConfig(path=named)) == [tmp_path / "[v2]" / "below" / "rows.jsonl"]
    with pytest.raises(InputMissing, match=r"rowz\.jsonl does not exist") as missing:
        files(SourceConfig(path=str(tmp_path / "[v2]" / "below" / "rowz.jsonl")))
    assert "rows.jsonl" in str(missing.value.hint)


@pytest.mark.parametrize(
    "text",
    [
        f"{line(0)}\n{line(1)}\n{line(2)}\n",
        f"\ufeff{line(0)}\r\n\r\n{line(1)}\r\n{line(2)}",
        "".join(json.dumps(row(number), indent=2) + "\n" for number in range(3)),
    ],
)
def test_a_json_file_may_hold_objects_one_after_the_other(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text, "utf-8", newline="")
    assert answers(loaded(path)) == ["0", "1", "2"]
    path.write_text(f"{text}{BAD}\n", "utf-8", newline="")
    *_, problem = loaded(path)
    assert problem.line == path.read_text("utf-8").count("\n", 0, path.read_text("utf-8").index(BAD)) + 1


def test_a_json_file_of_one_object_is_a_row_or_names_the_key_of_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(line(7))
    assert answers(loaded(path)) == ["7"]
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path.write_text(json.dumps({"messages": talk}))
    assert answers(loaded(path)) == ["b"]
    path.write_text(json.dumps({"version": 1, "labels": [{"n": 1}], "train": [row(0), row(1)]}, indent=1))
    (problem,) = loaded(path)
    assert problem.what == "the rows are in the key 'train'"


def test_a_text_file_has_a_row_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes("\ufeffFirst line.\r\n\n  \n  second, é\n".encode())
    assert loaded(path) == [Completion("", "First line."), Completion("", "  second, é")]
    path.write_bytes(b"good\ncaf\xe9\n")
    good, bad = loaded(path)
    assert good == Completion("", "good")
    assert (bad.line, bad.what.split(" (")[0]) == (2, "byte 0xe9 is not UTF-8")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", gzip.compress(b"{}", mtime=0), "this is gzip (rename it to end in .jsonl.gz)"),
        ("rows.csv", b"\x28\xb5\x2f\xfd0000", "this is zstd (rename it to end in .csv.zst)"),
        ("rows.json", b"PAR1....", "this is a Parquet file (rename it to end in .parquet)"),
        ("rows.csv", b"PK\x03\x04....", "this is a zip archive or a spreadsheet (export it as CSV or JSONL)"),
    ],
)
def test_a_file_of_another_kind_than_its_name_says_what_it_is(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    (problem,) = loaded(tmp_path / name)
    assert (problem.line, problem.what) == (None, said)


def test_a_problem_in_json_of_one_line_names_the_record_the_key_and_an_excerpt(
    tmp_path: Path, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> None:
    path = tmp_path / "rows.json"
    rows: list[dict[str, Any]] = [row(number) for number in range(1000)]
    rows[16] = {"instruction": "Say it.", "output": None}
    rows[500] = {"instruction": "", "output": "x"}
    path.write_text(json.dumps(rows))
    first, second = map(str, (each for each in loaded(path) if isinstance(each, Problem)))
    said = '{"instruction": "Say it.", "output": null}'
    assert first == f"{path}: record 17: output is null, not text, in {said}"
    assert second.startswith(f"{path}: record 501: instruction and input are both empty, in ")
    path.write_text(json.dumps(rows[:16]) + "\n")
    data = DataConfig(sources=(SourceConfig(path=str(path)),))
    prepared = prepare(data, tokenizer=TokenizerSpec.of(tokenizers["byte-level"]), cache_dir=tmp_path / "cache")
    assert prepared.place(15) == f"{path}: record 16"
    path.write_text(json.dumps([row(number) for number in range(40)]).replace('"39"', "39x"))
    *_, problem = loaded(path)
    assert (problem.line, problem.what.split(", in ")[0]) == (1, "not JSON: Expecting ',' delimiter")
    assert "in record 40 at " in problem.what
    assert '"output": 39x}' in problem.what


def test_standard_input_is_kept_in_a_file_named_by_its_content(tmp_path: Path) -> None:
    kinds = {".json": f"[{line(1)}]", ".jsonl": f"{line(1)}\n"}
    for suffix, text in kinds.items():
        path = spooled(io.BytesIO(text.encode()), tmp_path)
        assert path == spooled(io.BytesIO(text.encode()), tmp_path)
        assert (path.suffix, path.read_text()) == (suffix, text)
        assert answers(loaded(path)) == ["1"]
    assert spooled(io.BytesIO(gzip.compress(b"{}")), tmp_path).name.endswith(".jsonl.gz")
    kept = sorted(tmp_path.iterdir())
    for content, said in ((b" \n", "standard input is empty"), (b"a,b\n1,2\n", "neither JSON, JSONL nor Parquet")):
        with pytest.raises(DataError, match=said):
            spooled(io.BytesIO(content), tmp_path)
    assert sorted(tmp_path.iterdir()) == kept


def test_standard_input_is_not_shared_by_ranks(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from loradock.data.standard_input import spooled\n"
        "spooled(sys.stdin.buffer, Path(sys.argv[1]))\n"
    )
    environment = {**os.environ, "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, input=line(1), env=environment, capture_output=True, text=True)
    assert "shared by the ranks of a launch" in done.stderr


@pytest.mark.thin(3)
@pytest.mark.parametrize("with_model", [False, True])
def test_data_stats_reads_rows_from_standard_input(with_model: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loradock", "data", "stats", "--data", "-", "--json"]
    command += ["--set", f"data.cache={tmp_path / 'cache'}"]
    if with_model:
        command += ["--model", str(make_llama(tmp_path / "llama"))]
    rows = "".join(f"{line(number)}\n" for number in range(20))
    done = subprocess.run(command, input=rows, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (source,) = json.loads(done.stdout)["sources"]
    assert source["rows"] == 20
    assert source["path"].startswith(f"{tmp_path}/cache/stdin/stdin-")


def test_files_in_folders_below_a_directory_are_told_with_a_pattern_that_reads_them(tmp_path: Path) -> None:
    source = SourceConfig(path=str(tmp_path))
    for folder in (tmp_path, tmp_path / "sub"):
        write_rows(folder / "rows.jsonl", rows=1) if folder.is_dir() else folder.mkdir()
    assert told(source, chosen(source)) == []
    inner = write_rows(tmp_path / "sub" / "more.jsonl", rows=1)
    (line,) = told(source, chosen(source))
    assert f"1 file in folders below it not read ({inner}); a pattern reads them: '{tmp_path}/**/*.jsonl'" in line
    assert files(SourceConfig(path=f"{tmp_path}/**/*.jsonl")) == [tmp_path / "rows.jsonl", inner]


@pytest.mark.parametrize("named", ["", "/*.jsonl"])
def test_the_only_file_of_a_directory_or_a_pattern_is_named_in_messages(named: str, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "part-7.jsonl", rows=1)
    assert shown_files(SourceConfig(path=f"{tmp_path}{named}")) == [str(file)]
    assert shown_files(SourceConfig(path=str(file))) == [str(file)]


@pytest.mark.parametrize("name", ["my rows.txt", "rows.txt.gz"])
def test_what_of_a_text_file_is_a_document_is_told_with_the_key_that_says_otherwise(name: str, tmp_path: Path) -> None:
    text = b"first line\n\nthird 'quoted' line\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    source = SourceConfig(path=str(tmp_path / name))
    assert told(source, chosen(source)) == ["text: each line is a document (data.text: file for one a file)"]
    whole = source.with_text_unit("file")
    assert told(whole, chosen(whole)) == ["text: each file is a document (data.text: line for one a line)"]
    assert [found for _, found in samples(whole)] == [Completion("", text.decode().rstrip())]
