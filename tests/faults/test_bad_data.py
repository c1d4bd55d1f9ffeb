"""P13: bad data end with 65 (a missing file with 66), each problem with its file and line, before a model is loaded."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.conftest import Trial
from proven import unchecked
from tiny import BASE, make_llama, write_rows

from loradock.config.schema import RunConfig
from loradock.data.corpus import prepare_corpus
from loradock.errors import ConfigError, DataError, InputMissing, LoradockError
from loradock.facts import DataFacts, Facts
from loradock.machine import Host, probe

pytestmark = pytest.mark.thin(2)

CASES = Path(__file__).parents[1] / "cases" / "data"
EXPECTED: dict[str, list[tuple[int | None, str]]] = json.loads((CASES / "expected.json").read_text("utf-8"))
GOOD = b'{"instruction": "Add 2 and 2.", "output": "4"}\n'
CHAT = b'{"messages": [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Good day."}]}\n'
Place = tuple[int | None, str]
"""Line and words of one expected problem."""


def parquet(**columns: list[Any]) -> bytes:
    """A Parquet file with these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def zst(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


def turns(*roles: str) -> bytes:
    return json.dumps({"messages": [{"role": role, "content": "Hello."} for role in roles]}).encode() + b"\n"


SPOILT: dict[str, tuple[str, Callable[[], bytes], dict[str, Any], list[Place]]] = {
    "an error in the middle": (
        "rows.jsonl", lambda: GOOD * 700 + b'{"instruction": "a", \n' + GOOD * 700, {}, [(701, "not JSON")],
    ),
    "three errors far apart": (
        "rows.jsonl", lambda: (b"{\n" + GOOD * 500) * 3, {},
        [(1, "not JSON"), (502, "not JSON"), (1003, "not JSON")],
    ),
    "gzip cut short": (
        "rows.jsonl.gz", lambda: gzip.compress(GOOD * 2)[:-4], {}, [(3, "the compressed file is cut short")],
    ),
    "gzip that is none": ("rows.jsonl.gz", lambda: GOOD, {}, [(None, "the compressed file is corrupt")]),
    "gzip of nothing": ("rows.jsonl.gz", lambda: gzip.compress(b""), {}, [(None, "there are no rows")]),
    "zstd cut short": ("rows.jsonl.zst", lambda: zst(GOOD * 99)[:-5], {}, [(None, "the compressed file is cut short")]),
    "zstd that is none": ("rows.json.zst", lambda: b"[]", {}, [(None, "the compressed file is corrupt")]),
    "Parquet cut short": (
        "rows.parquet", lambda: parquet(instruction=["a"], output=["b"])[:-9], {}, [(None, "not a readable Parquet")]
    ),
    "Parquet that is none": ("rows.parquet", lambda: GOOD, {}, [(None, "not a readable Parquet file")]),
    "Parquet without rows": (
        "rows.parquet", lambda: parquet(instruction=[], output=[]), {}, [(None, "there are no rows")]
    ),
    "Parquet with a null": (
        "rows.parquet", lambda: parquet(instruction=["a", "a"], output=["b", None]), {}, [(2, "output is null")]
    ),
    "Parquet with numbers": (
        "rows.parquet", lambda: parquet(instruction=["a"] * 2, output=[1, 2]), {},
        [(1, "output is a number, not text"), (2, "output is a number")],
    ),
    "Parquet with foreign columns": ("rows.parquet", lambda: parquet(a=["a"]), {}, [(1, "columns a fit no format")]),
    "arrow that is none": ("rows.arrow", lambda: GOOD, {}, [(None, "not a readable arrow file")]),
    "a mark of byte order and no more": ("rows.jsonl", lambda: b"\xef\xbb\xbf", {}, [(None, "there are no rows")]),
    "a mark of byte order before an error": ("rows.jsonl", lambda: b"\xef\xbb\xbf{\n", {}, [(1, "not JSON")]),
    "UTF-16 with a mark": ("rows.csv", lambda: "instruction,output\na,b\n".encode("utf-16"), {}, [(1, "UTF-16")]),
    "UTF-16 in an array": ("rows.json", lambda: '[{"text": "a"}]'.encode("utf-16"), {}, [(1, "UTF-16")]),
    "Latin-1 in every row": (
        "rows.jsonl", lambda: '{"text": "café"}\n'.encode("latin-1") * 3, {},
        [(1, "byte 0xe9 is not UTF-8"), (2, "byte 0xe9"), (3, "byte 0xe9")],
    ),
    "deep nesting in an array": ("rows.json", lambda: b"[" * 200_000, {}, [(1, "")]),
    "all texts empty": ("rows.jsonl", lambda: b'{"text": " "}\n' * 3, {}, [(n, "text is empty") for n in (1, 2, 3)]),
    "all answers empty": (
        "rows.csv", lambda: b"instruction,output\na,\nb,\n", {}, [(2, "output is empty"), (3, "output is empty")]
    ),
    "two formats in one file": ("rows.jsonl", lambda: GOOD + CHAT + GOOD, {}, [(2, "no column 'instruction'")]),
    "a row of another format than the one named": (
        "rows.jsonl", lambda: GOOD + CHAT, {"format": "alpaca"}, [(2, "no column 'instruction'")]
    ),
    "pairs of answers": (
        "rows.jsonl", lambda: b'{"prompt": "a", "accepted": "b", "rejected": "c"}\n' * 9, {},
        [(1, "preference data (columns accepted and rejected)")],
    ),
    "a column that would be lost": (
        "rows.jsonl", lambda: GOOD + b'{"instruction": "a", "output": "b", "context": "c"}\n', {},
        [(2, "column 'context' is filled and would be lost")],
    ),
    "messages that are null": ("rows.jsonl", lambda: b'{"messages": null}\n', {}, [(1, "messages is null")]),
    "messages that are empty": ("rows.jsonl", lambda: b'{"messages": []}\n', {}, [(1, "messages holds no turns")]),
    "the user speaks last": ("rows.jsonl", lambda: turns("user", "assistant", "user"), {}, [(1, "ends with a user")]),
    "nobody answers": ("rows.jsonl", lambda: turns("user", "user"), {}, [(1, "no assistant turn")]),
    "old line ends": ("rows.jsonl", lambda: (GOOD * 2).replace(b"\n", b"\r"), {}, [(1, "not JSON: Extra data")]),
}  # fmt: skip


@pytest.fixture(scope="module")
def facts() -> Facts:
    return probe.gather(Host())


@pytest.fixture(scope="module")
def words() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(BASE)


Prepare = Callable[..., LoradockError]


@pytest.fixture
def refused(facts: Facts, words: Any, tmp_path: Path) -> Prepare:
    """The error that preparing these sources ends with; no card and no model is touched for it."""

    def call(*paths: Path, options: dict[str, Any] | None = None, **data: Any) -> LoradockError:
        sources = [{"path": str(path), **(options or {})} for path in paths]
        settings = {"sources": sources, "cache": str(tmp_path / "cache"), "workers": 1, **data}
        config = RunConfig.model_validate({"model": {"name": "none"}, "data": settings})
        with pytest.raises((DataError, InputMissing)) as caught:
            prepare_corpus(config, tokenizer=words, max_length=64, facts=facts)
        assert not list(tmp_path.glob("cache/*/manifest.json"))
        return caught.value

    return call


def places(error: LoradockError) -> list[Place]:
    """Line and words of each problem, those that are told together apart again, by line."""
    lines = [
        (line, problem.what)
        for problem in error.problems
        for line in (problem.line, *(int(place.rpartition(":")[2]) for place in problem.also))
    ]
    return sorted(lines, key=lambda place: place[0] or 0)


def judge(trial: Trial, error: LoradockError, *, case: str, path: Path, expected: list[Place]) -> None:
    """65, and each problem in its place and in order."""
    found = places(error)
    is_right = len(found) == len(expected) and all(
        line == wanted and words in what for (line, what), (wanted, words) in zip(found, expected, strict=True)
    )
    is_placed = all(problem.file == str(path) for problem in error.problems)
    trial("P13", error.exit_code == 65 and is_right and is_placed, case=case, found=[list(each) for each in found])
    for line, _ in expected:
        assert line is None or re.search(rf"{re.escape(str(path))}:{line}[:,]", str(error))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_bad_file_of_the_corpus_ends_with_65_and_every_line(name: str, refused: Prepare, trial: Trial) -> None:
    judge(trial, refused(CASES / name), case=name, path=CASES / name, expected=[(n, w) for n, w in EXPECTED[name]])


@pytest.mark.parametrize("case", SPOILT)
def test_a_file_spoilt_for_this_ends_with_65_and_every_line(
    case: str, refused: Prepare, tmp_path: Path, trial: Trial
) -> None:
    name, make, options, expected = SPOILT[case]
    path = tmp_path / name
    path.write_bytes(make())
    judge(trial, refused(path, options=options), case=case, path=path, expected=expected)


def test_a_template_that_refuses_a_row_says_which(refused: Prepare, tmp_path: Path, trial: Trial) -> None:
    path, template = tmp_path / "rows.jsonl", tmp_path / "strict.jinja"
    path.write_bytes(CHAT + turns("assistant", "assistant") + CHAT)
    template.write_text(
        "{% if messages[0]['role'] != 'user' %}{{ raise_exception('the user speaks first') }}{% endif %}"
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"
    )
    error = refused(path, template=str(template))
    judge(trial, error, case="template", path=path, expected=[(2, "refuses this conversation: the user speaks first")])


def test_a_row_of_200_000_tokens_is_counted_and_split_and_alone_it_is_refused_where_rows_are_cut(
    refused: Prepare, tmp_path: Path, facts: Facts, words: Any, trial: Trial
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"instruction": "river " * 200_000, "output": "stone"}) + "\n")
    error = refused_after_preparing(path, words=words, facts=facts, cache=tmp_path / "cache", long_rows="truncate")
    trial("P13", error.exit_code == 65 and "longer than 64 tokens" in error.what, case="200k tokens")
    assert error.hint == "--set data.long_rows=split"
    path.write_bytes(path.read_bytes() + GOOD)
    settings: dict[str, Any] = {"sources": [{"path": str(path)}], "cache": str(tmp_path / "cache"), "max_dropped": 0.5}

    def counted(long_rows: str) -> DataFacts:
        config = RunConfig.model_validate({"data": {**settings, "long_rows": long_rows}})
        return prepare_corpus(config, tokenizer=words, max_length=64, facts=facts).facts

    cut = counted("truncate")
    assert (cut.train_rows, cut.dropped_rows) == (1, 1)
    assert cut.lost_tokens >= 200_000
    split = counted("split")
    assert (split.train_rows, split.dropped_rows, split.split_rows) == (2, 0, 1)
    assert split.supervised_tokens > cut.supervised_tokens


@pytest.mark.parametrize(("long_rows", "share"), [(1, 0.1), (2, 0.1), (2, 0.2), (0, 0)])
def test_more_rows_than_allowed_that_would_be_left_out_end_with_65(
    long_rows: int, share: float, words: Any, facts: Facts, tmp_path: Path, trial: Trial
) -> None:
    path = tmp_path / "rows.jsonl"
    long = json.dumps({"instruction": "Say it.", "output": "river " * 90}).encode() + b"\n"
    path.write_bytes(GOOD * (10 - long_rows) + long * long_rows)
    settings: dict[str, Any] = {"sources": [{"path": str(path)}], "cache": str(tmp_path / "cache")}
    settings |= {"long_rows": "drop", **({} if share == 0.1 else {"max_dropped": share})}
    config = RunConfig.model_validate({"data": settings})
    if long_rows <= 10 * share:
        assert prepare_corpus(config, tokenizer=words, max_length=64, facts=facts).facts.dropped_rows == long_rows
        return
    with pytest.raises(DataError, match=r"2 of 10 rows .20.0%. would be left out: over 64 tokens") as caught:
        prepare_corpus(config, tokenizer=words, max_length=64, facts=facts)
    hint = str(caught.value.hint)
    trial("P13", caught.value.exit_code == 65 and hint.endswith("--set data.max_dropped=0.2"), case="too many left out")


def refused_after_preparing(path: Path, *, words: Any, facts: Facts, cache: Path, **settings: str) -> DataError:
    data = {"sources": [{"path": str(path)}], "cache": str(cache), **settings}
    config = RunConfig.model_validate({"data": data})
    with pytest.raises(DataError) as caught:
        prepare_corpus(config, tokenizer=words, max_length=64, facts=facts)
    return caught.value


def test_the_errors_of_all_sources_and_of_the_validation_file_come_at_once(
    refused: Prepare, tmp_path: Path, trial: Trial
) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "held_out.jsonl")]
    for path in paths:
        path.write_bytes((GOOD + b"{\n") * 3)
    error = refused(*paths[:2], validation=str(paths[2]))
    found = [(problem.place, *problem.also) for problem in error.problems]
    trial("P13", found == [tuple(f"{path}:{line}" for line in (2, 4, 6)) for path in paths], case="nine in three files")


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda _: None, 66, "does not exist"),
        (lambda path: path.symlink_to(path.with_name("gone.jsonl")), 66, "gone.jsonl, which leads to no file"),
        (lambda path: path.symlink_to(path), 66, "which leads to no file"),
        (os.mkfifo, 65, "is a pipe or a device"),
        (lambda path: path.symlink_to("/dev/zero"), 65, "is a pipe or a device"),
        (lambda path: path.mkdir(), 65, "a directory without files of rows"),
    ],
)
def test_what_is_no_file_of_rows_is_refused_without_reading_it(
    make: Callable[[Path], object], code: int, said: str, refused: Prepare, tmp_path: Path, trial: Trial
) -> None:
    path = tmp_path / "rows.jsonl"
    make(path)
    error = refused(path)
    trial("P13", error.exit_code == code and said in error.what, case=said, code=code)
    assert error.hint


def test_all_missing_sources_are_told_at_once_and_before_any_is_read(
    refused: Prepare, tmp_path: Path, trial: Trial
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"{\n" * 9)
    paths = [tmp_path / name for name in ("rowz.jsonl", "rows.jsonl")]
    error = refused(*paths, validation=str(tmp_path / "gone" / "held_out.jsonl"))
    text = str(error)
    is_all = "rowz.jsonl does not exist (did you mean" in text and "nor does its directory" in text
    trial("P13", error.exit_code == 66 and is_all, case="two of three missing")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize(
    ("name", "content", "code", "shown"),
    [
        ("rows.jsonl", GOOD + b'{"instruction": 3}\n' + b"{\n" + b"\n" + b'["x"]\n', 65, ("2", "3", "5")),
        pytest.param("rows.csv", b"instruction,output\na\nb,c\nd,\xe9\n", 65, ("2", "4"), marks=pytest.mark.full),
        pytest.param("gone.jsonl", None, 66, (), marks=pytest.mark.full),
    ],
)
def test_the_command_ends_before_the_base_is_loaded(
    name: str, content: bytes | None, code: int, shown: tuple[str, ...], llama: Path, tmp_path: Path, trial: Trial
) -> None:
    data, output = tmp_path / name, tmp_path / "run"
    write_rows(tmp_path / "good.jsonl")
    if content is not None:
        data.write_bytes(content)
    command = [sys.executable, "-m", "loradock", "train", unchecked("bad rows"), "--model", str(llama)]
    command += ["--data", str(tmp_path / "good.jsonl"), "--data", str(data), "--output", str(output)]
    command += ["--set", f"data.cache={tmp_path / 'cache'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = tuple(re.findall(rf"{re.escape(str(data))}:(\d+)[:,]", done.stderr))
    as_expected = (done.returncode, lines, output.exists()) == (code, shown, False)
    trial("P13", as_expected, case=name, code=done.returncode, lines=lines)


def test_bad_rows_are_told_before_the_machine_is_looked_at_and_leave_nothing(tmp_path: Path, llama: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(GOOD * 700 + b"{\n" + GOOD * 700 + b'{"instruction": "a", "output": ""}\n')
    command = [sys.executable, "-m", "loradock", "train", "--model", str(llama), "--data", str(rows), "--output", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "environment" in done.stderr, (tmp_path / "out").exists()) == (65, False, False)
    assert "2 problems in the data" in done.stderr
    assert f"{rows}:701" in done.stderr
    assert f"{rows}:1402" in done.stderr


@pytest.mark.parametrize(
    ("sources", "validation"),
    [
        (("rows.jsonl", "./rows.jsonl"), 0.2),
        (("*.jsonl", "rows.jsonl"), 0.0),
        (("*.jsonl",), "rows.jsonl"),
        (("rows.jsonl",), {"one": "./rows.jsonl"}),
        (("rows.jsonl",), {"one": "other/a.jsonl", "two": "other/../other/a.jsonl"}),
        (("rows.jsonl",), {"one": "other/a.jsonl", "two": "other/a.jsonl"}),
    ],
)
def test_a_file_that_is_named_twice_is_refused_however_it_is_spelt(
    sources: tuple[str, ...], validation: Any, tmp_path: Path, facts: Facts, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other").mkdir()
    for name in ("rows.jsonl", "other/a.jsonl"):
        Path(name).write_bytes(GOOD * 20)
    data = {"sources": [{"path": path} for path in sources], "validation": validation, "cache": "cache"}
    config = RunConfig.model_validate({"data": data})
    with pytest.raises(ConfigError, match="named twice") as caught:
        prepare_corpus(config, tokenizer=words, max_length=64, facts=facts)
    assert "is read by data." in caught.value.problems[0].what
