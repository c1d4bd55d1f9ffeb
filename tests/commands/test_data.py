"""`loradock data stats`: what it prints, what it draws, and how it ends where rows are bad."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from faults.forking import Forking
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from terminal import lines_at
from tiny import write_rows

from loradock.analysis.report.histogram import GREEN, VERMILION, bars, cumulative, draw
from loradock.cli import cli
from loradock.errors import LoradockError, ModelError, NotWritable

pytestmark = pytest.mark.thin(2)


@pytest.fixture
def stats(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in this process, with the tiny Llama."""
    monkeypatch.setenv("LORADOCK_CACHE", str(tmp_path / "cache"))

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(cli, ["data", "stats", "--model", str(llama), *map(str, arguments)])

    return invoke


def error_of(ended: Result) -> LoradockError:
    assert isinstance(ended.exception, LoradockError), ended.output
    return ended.exception


def test_a_person_reads_tables_a_histogram_and_what_to_type(stats: Any, rows: Path) -> None:
    ended = stats("--data", rows)
    assert ended.exit_code == 0, ended.output
    out = ended.stdout
    assert "rows: 48 read, all of them usable; 48 to train on" in out
    assert "formats: alpaca 48" in out
    titles = ("sources", "tokens of a row", "rows by length", "what would be cut if rows were not split", "padding")
    assert all(title in out for title in titles)
    assert "\u2588" in out
    assert "recommended: --set data.max_length=128" in out
    assert ended.stderr == ""


def test_without_anything_it_asks_for_rows_alone() -> None:
    error = error_of(CliRunner().invoke(cli, ["data", "stats"]))
    assert str(error) == "error: no data\nhint: --data FILE of rows; with --model DIR its tokens are counted"
    assert error.exit_code == 78


def test_80_columns_cut_no_word_and_no_figure(llama: Path, tmp_path: Path, forking: Forking) -> None:
    file = tmp_path / "[bold]rows.jsonl"
    write_rows(file, rows=200, longest=60)
    words = ("data", "stats", "--model", llama, "--data", file, "--lengths", "64,128,256,384,512")
    lines = lines_at(forking, tmp_path, 80, *words)
    assert max(map(len, lines)) <= 80
    assert {"supervised", "answer", "dropped", "padded,"} <= set(" ".join(lines).split())
    assert any(re.fullmatch(r"\(\d+: recommended.*\)", line.strip()) for line in lines)
    assert "[bold]rows.jsonl" in "".join(line.split("  ")[0] for line in lines)
    cut = next(number for number, line in enumerate(lines) if line.startswith("what would be cut"))
    figures = {line.split()[0]: line for line in lines[cut : cut + 10] if line.split()}
    for length in ("64", "128", "256", "384", "512"):
        assert len(re.findall(r"\d %|x\d\.\d\d", figures[length])) == 5


def test_json_holds_the_same_figures_for_programs(stats: Any, rows: Path, llama: Path) -> None:
    from transformers import AutoTokenizer

    ended = stats("--data", rows, "--json", "--lengths", "16,300", "--set", "data.max_length=40")
    found = json.loads(ended.stdout)
    tokenizer = AutoTokenizer.from_pretrained(llama)
    lengths = []
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        turns = [
            {"role": "user", "content": f"{row['instruction']}\n\n{row['input']}"},
            {"role": "assistant", "content": row["output"]},
        ]
        lengths.append(len(tokenizer.apply_chat_template(turns, return_dict=True)["input_ids"]))
    assert found["tokens"]["tokens"] == sum(lengths)
    assert found["tokens"]["percentiles"]["max"] == max(lengths)
    recommended = found["recommendation"]["max_length"]
    assert [at["cut"]["length"] for at in found["lengths"]] == sorted({16, 40, 300, recommended})
    for at in found["lengths"]:
        assert at["cut"]["rows_whole"] == sum(length <= at["cut"]["length"] for length in lengths)
    assert sum(found["histogram"]["rows"]) == found["train_rows"] == 48


def test_no_weights_are_needed(stats: Any, llama: Path, rows: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(llama, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    ended = stats("--data", rows, "--json", "--model", bare)
    assert ended.exit_code == 0, ended.exception
    assert json.loads(ended.stdout)["train_rows"] == 48
    (bare / "config.json").unlink()
    assert "has no config.json" in str(error_of(stats("--data", rows, "--model", bare)))


def test_the_recommended_setting_is_one_that_the_command_takes(stats: Any, rows: Path) -> None:
    first = json.loads(stats("--data", rows, "--json").stdout)["recommendation"]
    again = json.loads(stats("--data", rows, "--json", "--set", first["setting"]).stdout)
    assert again["max_length"] == again["recommendation"]["max_length"] == first["max_length"]


def test_bad_rows_end_it_as_they_end_train_all_named_with_65(stats: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"instruction": "a", "output": ""}\n{"instruction": "b", "output": "c"}\n{broken\n')
    ended = stats("--data", bad, "--json")
    error = error_of(ended)
    assert (error.exit_code, ended.stdout) == (65, "")
    first, second, third, _ = str(error).splitlines()
    assert first == "error: 2 problems in the data"
    assert second.startswith(f"  {bad}:1: output is empty")
    assert third.startswith(f"  {bad}:3: ")


def test_rows_beyond_the_models_positions_are_counted_and_a_length_beyond_them_is_refused(
    stats: Any, tmp_path: Path
) -> None:
    file = tmp_path / "long.jsonl"
    long_row = {"prompt": "word " * 2000, "completion": "end"}
    file.write_text("\n".join([json.dumps(long_row), *['{"prompt": "a", "completion": "b"}'] * 20]))
    found = json.loads(stats("--data", file, "--json").stdout)
    assert (found["positions"], found["recommendation"]["max_length"]) == (512, 512)
    assert found["lengths"][-1]["cut"]["answers_lost"] == 1
    assert "beyond the model's positions" in stats("--data", file, "--lengths", "4096").stdout
    assert isinstance(error_of(stats("--data", file, "--set", "data.max_length=4096")), ModelError)


@pytest.mark.parametrize("lengths", ["0", "a", "512,,", "-3"])
def test_lengths_that_are_no_numbers_are_usage_errors(stats: Any, rows: Path, lengths: str) -> None:
    ended = stats("--data", rows, f"--lengths={lengths}")
    assert ended.exit_code == 2
    assert "whole numbers of tokens" in ended.stderr


def near(image: np.ndarray[Any, Any], color: str) -> int:
    """Pixels of nearly this colour."""
    return int((np.abs(image[..., :3] - np.array(to_rgb(color))).max(axis=-1) < 0.1).sum())


def test_the_picture_has_bars_both_curves_and_the_lengths(stats: Any, rows: Path, tmp_path: Path) -> None:
    file = tmp_path / "lengths.png"
    ended = stats("--data", rows, "--png", file, "--json")
    assert json.loads(ended.stdout)["train_rows"] == 48
    assert ended.stderr == f"drawn: {file}\n"
    image = imread(file)
    assert image.shape[:2] == (600, 1080)
    assert min(near(image, VERMILION), near(image, GREEN)) > 200
    (tmp_path / "file").touch()
    refused = error_of(stats("--data", rows, "--png", tmp_path / "file" / "a.png"))
    assert isinstance(refused, NotWritable)


@pytest.mark.thin(4)
@pytest.mark.parametrize("lengths", [[12], [20, 30, 30, 31, 44], [4, 30, 31, 9000]])
def test_the_picture_is_drawn_of_one_length_of_like_ones_and_of_a_wide_span(lengths: list[int], tmp_path: Path) -> None:
    marks = {"plain": {}, "line": {lengths[0]: ""}, "name": {lengths[0]: "limit", 10**6: "far"}}
    pictures = []
    for name, marked in marks.items():
        draw(np.array(lengths, dtype=np.int32), marks=marked, title="rows", file=tmp_path / f"{name}.png")
        pictures.append(imread(tmp_path / f"{name}.png"))
    assert near(pictures[0], VERMILION) > 50
    for first, second in pairwise(pictures):
        assert not np.array_equal(first, second)


def test_the_curves_are_shares_of_rows_and_of_tokens() -> None:
    ordered = np.array([2, 5, 5, 9], dtype=np.int64)
    rows, tokens = cumulative(ordered, np.array([1, 2, 5, 8, 9]))
    assert rows.tolist() == [0, 0.25, 0.75, 0.75, 1]
    assert tokens.tolist() == [sum(min(n, cut) for n in ordered) / 21 for cut in (1, 2, 5, 8, 9)]
    for shortest, longest in ((1, 1), (3, 4000), (100, 131)):
        for is_log in (False, True):
            edges = bars(shortest=shortest, longest=longest, is_log=is_log, count=64)
            assert len(edges) <= 66
            assert edges[0] <= shortest
            assert edges[-1] > longest


def test_without_a_model_characters_and_words_are_counted_and_what_a_tokenizer_adds_is_said(rows: Path) -> None:
    ended = CliRunner().invoke(cli, ["data", "stats", "--data", str(rows)])
    assert ended.exit_code == 0, ended.output
    assert "rows: 48 read, all of them usable; formats: alpaca 48" in ended.stdout
    assert {"characters", "words"} <= set(ended.stdout.split())
    assert "not counted without a tokenizer; --model DIR" in ended.stdout
    found = json.loads(CliRunner().invoke(cli, ["data", "stats", "--data", str(rows), "--json"]).stdout)
    assert found["rows"] == 48
    assert found["characters"]["percentiles"]["max"] == found["sources"][0]["longest"]
    assert any("padding" in each for each in found["tokenizer_adds"])


def test_without_a_model_80_columns_are_enough(rows: Path, tmp_path: Path, forking: Forking) -> None:
    assert max(map(len, lines_at(forking, tmp_path, 80, "data", "stats", "--data", rows))) <= 80


@pytest.mark.parametrize("option", [("--lengths", "64"), ("--png", "rows.png")])
def test_without_a_model_an_option_about_tokens_is_refused(rows: Path, option: tuple[str, str]) -> None:
    refused = error_of(CliRunner().invoke(cli, ["data", "stats", "--data", str(rows), *option]))
    assert (refused.exit_code, refused.what) == (64, f"{option[0]} needs the tokenizer of a model")


def test_special_tokens_in_contents_and_what_is_learned_are_told(stats: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": "a", "completion": f"x</s>y {number}"} for number in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ended = stats("--data", file)
    assert "</s> 20x" in ended.stderr
    assert "--set data.special_tokens=as_control" in ended.stderr
    assert "assistant turns and completions, not prompts" in " ".join(ended.stdout.split())
    ended = stats("--data", file, "--json")
    assert json.loads(ended.stdout)["special_texts"] == {"</s>": 20}
