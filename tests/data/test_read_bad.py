"""Bad data: every problem of a file is found, at its line, in words that say what is wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.formats import named
from loradock.data.read import digest, files, read
from loradock.data.sources import samples
from loradock.errors import ConfigError, DataError, HubError, InputMissing, Problem
from loradock.plan import zero_config

pytestmark = pytest.mark.thin(3)

CASES = Path(__file__).parents[1] / "cases" / "data"
EXPECTED: dict[str, list[tuple[int | None, str]]] = json.loads((CASES / "expected.json").read_text("utf-8"))
ROW = {"instruction": "Add 2 and 2.", "output": "4"}
LINE = (json.dumps(ROW) + "\n").encode()


def problems(path: Path, **config: object) -> list[Problem]:
    """The problems of a source, in order."""
    source = SourceConfig.model_validate({"path": str(path), **config})
    return [found for _, found in samples(source) if isinstance(found, Problem)]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_problem_of_a_bad_file_is_listed_with_its_line(name: str) -> None:
    found = problems(CASES / name)
    assert [problem.line for problem in found] == [line for line, _ in EXPECTED[name]]
    for problem, (_, words) in zip(found, EXPECTED[name], strict=True):
        assert words in problem.what
        assert problem.file == str(CASES / name)


def test_every_bad_file_of_the_corpus_has_its_expectation() -> None:
    assert sorted(EXPECTED) == sorted(path.name for path in CASES.iterdir() if path.name != "expected.json")


def test_the_good_rows_around_a_bad_one_are_kept_in_order() -> None:
    loaded = list(samples(SourceConfig(path=str(CASES / "bad_byte.jsonl"))))
    assert [line for line, _ in loaded] == [1, 2, 3]
    assert [isinstance(found, Problem) for _, found in loaded] == [False, True, False]


def test_columns_that_fit_no_format_are_answered_with_the_option_that_makes_them_fit() -> None:
    (problem,) = problems(CASES / "other_columns.jsonl")
    assert problem.hint is not None
    options = [part.split("=") for part in problem.hint.split() if part.startswith("data.sources.0.fields.")]
    fields = {name.removeprefix("data.sources.0.fields."): column for name, column in options}
    assert fields == {"instruction": "question", "output": "answer"}
    assert problems(CASES / "other_columns.jsonl", fields=fields) == []


def test_an_undetected_file_still_has_its_broken_lines_listed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"query": "a"}\n{"query": \n{"query": "b"}\n')
    assert [problem.line for problem in problems(path)] == [1, 2]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_cut_short_is_told_from_one_that_ends(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.jsonl{suffix}"
    packed = compress(LINE * 2000 + bytes(range(128)) + b"\n", suffix)
    path.write_bytes(packed[:-20])
    assert problems(path)[-1].what == "the compressed file is cut short"
    checksum = -6 if suffix == ".gz" else -1
    path.write_bytes(packed[:checksum] + bytes([packed[checksum] ^ 0x5A]) + packed[checksum:][1:])
    assert "the compressed file is corrupt" in problems(path)[-1].what
    path.write_bytes(b"plain text")
    assert "the compressed file is corrupt" in problems(path)[-1].what


def compress(plain: bytes, suffix: str) -> bytes:
    """`plain` as a .gz or .zst file holds it."""
    if suffix == ".gz":
        return gzip.compress(plain)
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(plain)


def test_a_parquet_or_arrow_file_that_is_none_is_a_problem_of_the_file(tmp_path: Path) -> None:
    for name, words in (("rows.parquet", "not a readable Parquet file"), ("rows.arrow", "not a readable arrow file")):
        (tmp_path / name).write_bytes(b"PAR1 but no more than that")
        (problem,) = problems(tmp_path / name)
        assert problem.line is None
        assert words in problem.what


def test_a_parquet_row_of_the_wrong_type_is_named_by_its_number(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"instruction": ["a"] * 700, "output": ["b"] * 650 + [None] + ["b"] * 49}), tmp_path / "r.parquet"
    )
    (problem,) = problems(tmp_path / "r.parquet")
    assert (problem.line, problem.what) == (651, "output is null, not text")


def test_bytes_in_a_parquet_string_column_that_are_not_utf8_cost_one_row_only(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    output = pa.array([b"b", b"caf\xe9", b"b"]).view(pa.string())
    pq.write_table(pa.table({"instruction": ["a"] * 3, "output": output}), tmp_path / "r.parquet")
    (problem,) = problems(tmp_path / "r.parquet")
    assert problem.line == 2
    assert "byte 0xe9" in problem.what


@pytest.mark.parametrize(
    ("suffix", "opening"), [(".jsonl", b'{"instruction": "'), (".json", b'[{"instruction": "'), (".csv", b"a,b\n")]
)
def test_a_row_without_end_is_refused_at_64_mib(tmp_path: Path, suffix: str, opening: bytes) -> None:
    path = tmp_path / f"rows{suffix}"
    with path.open("wb") as file:
        file.write(opening)
        for _ in range(130):
            file.write(b"x" * 2**20)
    (problem,) = problems(path)
    assert "is longer than 64 MiB" in problem.what


def test_a_missing_path_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(LINE)
    for ask in (lambda source: list(read(source)), digest, files):
        with pytest.raises(InputMissing) as caught:
            ask(SourceConfig(path=str(tmp_path / "trian.jsonl")))
        assert caught.value.hint == f"did you mean {tmp_path / 'train.jsonl'}?"
        assert caught.value.exit_code == 66
    with pytest.raises(InputMissing, match="nor does its directory"):
        files(SourceConfig(path=str(tmp_path / "none" / "train.jsonl")))
    with pytest.raises(InputMissing) as caught:
        files(SourceConfig(path="some-owner/some-data"))
    assert caught.value.hint == "for a hub data set write hub:some-owner/some-data"


def test_a_kind_of_file_that_is_not_read_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    for name in ("rows.xlsx", "rows.parquet.gz", "rows"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(DataError) as caught:
            list(read(SourceConfig(path=str(tmp_path / name))))
        assert ".jsonl" in str(caught.value.hint)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="a directory without files of rows"):
        files(SourceConfig(path=str(tmp_path / "folder")))
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / "folder" / name).write_text("{}")
    with pytest.raises(DataError, match=r"is the directory of a model, which holds no rows\nhint: --model "):
        files(SourceConfig(path=str(tmp_path / "folder")))


def test_a_format_or_field_that_does_not_exist_is_a_configuration_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINE)
    with pytest.raises(ConfigError) as caught:
        named("alpacca")
    assert caught.value.hint == "--set data.sources.0.format=alpaca"
    with pytest.raises(ConfigError, match="reply is a field of no alpaca row"):
        problems(path, format="alpaca", fields={"reply": "output"})
    with pytest.raises(ConfigError, match="reply is a field of no format"):
        problems(path, fields={"reply": "output"})


@pytest.mark.parametrize("settings", [{"fields": {"input": "context"}}, {"ignore": ["context"]}])
def test_a_column_that_is_named_and_that_no_row_has_is_a_configuration_error(
    settings: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINE * 2)
    with pytest.raises(ConfigError, match=r"names column 'context', which no row of .*rows\.jsonl has"):
        problems(path, **settings)


@pytest.mark.parametrize(
    ("settings", "what", "hint"),
    [
        (
            {"format": "alpaca", "fields": {"output": "response"}},
            r"no row of .*rows\.jsonl fits format alpaca: no column 'response' \(field 'output'\)",
            "--set data.sources.0.fields.output=output",
        ),
        ({"fields": {"text": "body"}}, r"\(with fields text = body\) fit no format", "nearest is"),
        (
            {"fields": {"instruction": "question"}},
            "no column 'question'",
            "--set data.sources.0.fields.instruction=instruction",
        ),
        ({"format": "messages"}, "no column 'messages'", "--set data.sources.0.format=alpaca"),
        ({"format": "alpaca", "fields": {"input": "number"}}, "input is a number", "leave out data.sources.0.fields"),
    ],
)
def test_a_format_or_field_that_no_row_fits_is_told_once_as_a_configuration_error(
    settings: dict[str, object], what: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    row = {**ROW, "number": 3} if "number" in str(settings) else ROW
    path.write_text(f"{json.dumps(row)}\n" * 300)
    with pytest.raises(ConfigError, match=what) as caught:
        problems(path, **settings)
    assert hint in str(caught.value.hint)
    assert caught.value.exit_code == 78


def test_rows_that_do_not_fit_among_rows_that_do_are_problems_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"instruction": "a"}\n' * 2 + LINE + b'{"instruction": "a"}\n')
    assert [problem.line for problem in problems(path, format="alpaca")] == [1, 2, 4]


def test_a_hub_data_set_without_a_commit_is_refused_where_nobody_looks_it_up() -> None:
    with pytest.raises(ConfigError, match=r"hub:owner/name: a data set of a hub needs a commit") as caught:
        digest(SourceConfig(path="hub:owner/name"))
    assert caught.value.hint == (
        "write hub:owner/name@COMMIT#SPLIT; or hf download owner/name --repo-type dataset --local-dir name, "
        "and name a file of it"
    )
    (named,) = DataConfig(sources=(SourceConfig(path="hub:owner/name@abc#small/test"),)).sources
    assert (digest(named), files(named)) == ("owner/name@abc/small/test", [])
    source = SourceConfig(path="hub:owner/name", revision="abc", split="test")
    assert (digest(source), files(source)) == ("owner/name@abc/test", [])


def test_a_hub_that_is_switched_off_ends_in_a_hub_error_with_the_remedy(tmp_path: Path) -> None:
    code = (
        "from loradock.config.sections.data import SourceConfig; from loradock.data.sources import samples\n"
        "from loradock.errors import HubError\n"
        "try: list(samples(SourceConfig(path='hub:no-such-owner/no-such-data', revision='abc')))\n"
        "except HubError as error: print(error.exit_code, error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{HubError.exit_code} error: the hub did not give hub:no-such-owner/no-such-data")
    assert "hint: unset HF_HUB_OFFLINE" in done.stdout


def test_a_link_that_leads_nowhere_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").symlink_to("gone/rows.jsonl")
    (tmp_path / "rows-1.jsonl").write_bytes(LINE)
    (tmp_path / "round.jsonl").symlink_to("round.jsonl")
    for name, target in (("rows.jsonl", "gone/rows.jsonl"), ("round.jsonl", "round.jsonl")):
        with pytest.raises(InputMissing) as caught:
            files(SourceConfig(path=str(tmp_path / name)))
        assert f"is a symlink to {target}, which leads to no file" in caught.value.what
        assert caught.value.hint == f"ls -l {tmp_path / name}"


FAULTS = {
    "control character": '{"instruction": "a\tb", "output": "4"}',
    "escape": r'{"instruction": "\d", "output": "4"}',
    "half of a unicode escape": r'{"instruction": "\u12", "output": "4"}',
    "end of a text": '{"instruction": "a, "output": "4"}',
    "trailing comma": '{"instruction": "a", "output": "4",}',
    "bare name": '{instruction: "a"}',
    "no colon": '{"instruction" "a"}',
    "no comma": '{"instruction": "a" "output": "4"}',
    "no value": '{"instruction": }',
}
"""What Python's decoder has a text for."""


@pytest.mark.parametrize("suffix", ["jsonl", "json", "zero"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_decoder_says_and_where_it_stands_are_one_sentence(fault: str, suffix: str, tmp_path: Path) -> None:
    """It was "Invalid control character at at column 18"."""
    path = tmp_path / f"rows.{suffix}"
    path.write_text(f"{FAULTS[fault]}\n")
    if suffix == "zero":
        with pytest.raises(ConfigError) as caught:
            zero_config.read(path)
        (problem,) = caught.value.problems
    else:
        (problem,) = problems(path)
    assert not re.search(r"\b(\w+) \1\b|: (at|,)|\bat(,|$)", problem.what), problem.what
