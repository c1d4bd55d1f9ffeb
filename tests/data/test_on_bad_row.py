"""Bad rows that the configuration leaves out: which ones, how many at most, and what is reported of them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from loradock import demo
from loradock.catalog.objectives import OBJECTIVES
from loradock.cli import cli
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.first_look import look
from loradock.data.prepare import prepare
from loradock.data.prepared import Prepared
from loradock.errors import DataError

pytestmark = pytest.mark.thin(2)

BASE = Path(demo.__file__).parent / "base"
GOOD = [json.dumps({"prompt": f"What is {number}?", "completion": f" It is {number}."}) for number in range(40)]
BAD = {
    3: "{broken",
    11: json.dumps({"prompt": "Which?", "completion": ""}),
    12: json.dumps(["no", "object"]),
    20: json.dumps({"prompt": "Which?", "completion": 7}),
}
"""{line: row}"""


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(BASE)


def written(file: Path, bad: dict[int, str] = BAD) -> Path:
    rows = list(GOOD)
    for line, row in sorted(bad.items()):
        rows.insert(line - 1, row)
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return file


def prepared(file: Path, tokenizer: PreTrainedTokenizerBase, cache: Path, workers: int = 1, **keys: Any) -> Prepared:
    data = DataConfig(sources=(SourceConfig(path=str(file)),), **keys)
    return prepare(data, tokenizer=tokenizer, cache_dir=cache, workers=workers)


def tokens(data: Prepared) -> list[tuple[list[int], list[bool]]]:
    """Ids and mask of each row."""
    rows = [data.row(row) for row in range(data.rows)]
    return [(ids.tolist(), mask.tolist()) for ids, mask in rows]


def shown(file: Path, cache: Path, *sets: str) -> Result:
    """`loradock data show`, as a person types it."""
    words = [word for each in (*sets, f"data.cache={cache}") for word in ("--set", each)]
    return CliRunner().invoke(cli, ["data", "show", "--model", str(BASE), "--data", str(file), *words])


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_rows_are_left_out_and_all_others_are_as_without_them(
    workers: int, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    file, clean = written(tmp_path / "rows.jsonl"), written(tmp_path / "clean.jsonl", {})
    found = prepared(file, tokenizer, tmp_path / "cache", workers, on_bad_row="skip")
    without = prepared(clean, tokenizer, tmp_path / "cache")
    assert (found.rows, found.skipped_rows, without.skipped_rows) == (40, 4, 0)
    assert tokens(found) == tokens(without)
    assert set(range(1, 45)) - set(found.lines.tolist()) == BAD.keys()
    said = "\n".join(found.notes)
    assert "4 of 44 rows are bad and left out (data.on_bad_row skip)" in said
    assert all(f"{file}:{line}" in said for line in BAD)
    inode = found.directory.stat().st_ino
    again = prepared(file, tokenizer, tmp_path / "cache", workers, on_bad_row="skip")
    assert again.directory.stat().st_ino == inode
    assert (again.key, again.notes, again.skipped_rows) == (found.key, found.notes, 4)
    with pytest.raises(DataError, match="4 problems in the data"):
        prepared(file, tokenizer, tmp_path / "cache", workers)


def test_the_first_look_passes_over_them_too(tmp_path: Path) -> None:
    source = SourceConfig(path=str(written(tmp_path / "rows.jsonl")))
    look(DataConfig(sources=(source,), on_bad_row="skip"), objective=OBJECTIVES["supervised"])
    with pytest.raises(DataError, match="problems in the data") as refused:
        look(DataConfig(sources=(source,)), objective=OBJECTIVES["supervised"])
    assert str(refused.value.hint).endswith("; or --set data.on_bad_row=skip leaves them out")


@pytest.mark.parametrize("bad", [2, 16])
def test_what_the_hint_says_leaves_the_bad_rows_out_however_many_they_are(bad: int, tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", dict.fromkeys(range(1, bad + 1), BAD[11]))
    stopped = shown(file, tmp_path / "cache")
    settings = re.findall(r"--set (\S+)", str(getattr(stopped.exception, "hint", "")))
    assert len(settings) == (1 if bad == 2 else 2)
    assert shown(file, tmp_path / "cache", *settings).exit_code == 0


def test_where_every_row_is_bad_none_is_said_to_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{BAD[11]}\n" * 3)
    for settings in ([], ["data.on_bad_row=skip"]):
        refused = shown(file, tmp_path / "cache", *settings)
        assert getattr(refused.exception, "hint", "") == "fix or remove these rows, then run again"


def test_more_than_may_be_dropped_end_the_run_and_the_hint_allows_them(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", dict.fromkeys(range(1, 16, 2), "{broken"))
    stopped = shown(file, tmp_path / "cache")
    assert "--set data.on_bad_row=skip --set data.max_dropped=0.17 leaves" in str(
        getattr(stopped.exception, "hint", "")
    )
    refused = shown(file, tmp_path / "cache", "data.on_bad_row=skip")
    assert "8 of 48 rows (16.7%) are bad; data.on_bad_row skip leaves out 10% at most" in str(refused.exception)
    hint = str(getattr(refused.exception, "hint", ""))
    allowed = hint.rpartition("--set ")[2]
    assert allowed == "data.max_dropped=0.17"
    done = shown(file, tmp_path / "cache", "data.on_bad_row=skip", allowed)
    assert done.exit_code == 0, done.exception
    assert "8 of 48 rows are bad and left out" in done.output


def test_statistics_leave_them_out_too_with_a_tokenizer_and_without(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", {**BAD, 44: "{broken at the end"})
    words = ["data", "stats", "--data", str(file), "--json", "--set", f"data.cache={tmp_path / 'cache'}"]
    for model in (["--model", str(BASE)], []):
        done = CliRunner().invoke(cli, [*words, *model, "--set", "data.on_bad_row=skip", "--set", "data.max_dropped=1"])
        assert done.exit_code == 0, done.exception
        assert json.loads(done.stdout)["rows"] == 40
        assert "bad" in done.stderr


def test_a_damaged_file_and_rows_that_are_all_bad_end_the_run_all_the_same(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress("\n".join(GOOD * 50).encode())[:-40])
    with pytest.raises(DataError, match="cut short"):
        prepared(cut, tokenizer, tmp_path / "cache", on_bad_row="skip")
    half = tmp_path / "half.jsonl"
    half.write_text("\n".join(GOOD)[:-9], encoding="utf-8")
    with pytest.raises(DataError, match="the file ends inside this row") as refused:
        prepared(half, tokenizer, tmp_path / "cache", on_bad_row="skip")
    assert "on_bad_row" not in str(refused.value.hint)
    none = written(tmp_path / "none.jsonl", {})
    none.write_text("{broken\n" * 5, encoding="utf-8")
    with pytest.raises(DataError, match="5 problems in the data"):
        prepared(none, tokenizer, tmp_path / "cache", on_bad_row="skip", max_dropped=1.0)


@pytest.mark.parametrize("bad", [(2, 16), (16, 2), (0, 16), (16, 0)])
def test_the_hint_allows_the_share_of_the_part_that_has_most_bad_rows(bad: tuple[int, int], tmp_path: Path) -> None:
    parts = zip(("rows", "judged"), bad, strict=True)
    file, judged = (
        written(tmp_path / f"{name}.jsonl", dict.fromkeys(range(1, count + 1), BAD[11])) for name, count in parts
    )
    data = {"sources": [{"path": str(file)}], "validation": str(judged)}
    with pytest.raises(DataError) as refused:
        look(DataConfig.model_validate(data), objective=OBJECTIVES["supervised"])
    assert "--set data.max_dropped=0.29 leaves" in str(refused.value.hint)  # 16 of 56
    skipping = [f"data.validation={judged}", "data.on_bad_row=skip", "data.max_dropped=0.01"]
    hint = str(getattr(shown(file, tmp_path / "cache", *skipping).exception, "hint", ""))
    assert 0 in bad or hint.endswith("--set data.max_dropped=0.29")


def test_no_hint_leaves_bad_rows_out_where_a_part_has_no_other(tmp_path: Path) -> None:
    judged = tmp_path / "judged.jsonl"
    judged.write_text(f"{BAD[11]}\n")
    data = {"sources": [{"path": str(written(tmp_path / "rows.jsonl", {}))}], "validation": str(judged)}
    with pytest.raises(DataError) as refused:
        look(DataConfig.model_validate(data), objective=OBJECTIVES["supervised"])
    assert refused.value.hint == "fix or remove these rows, then run again"
