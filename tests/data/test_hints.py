"""A hint that is followed to the letter leads to rows that are rendered as meant; each one of the data code is here."""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.test_columns import obeyed
from transformers import PreTrainedTokenizerFast

from loradock.catalog.objectives import OBJECTIVES
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.first_look import look
from loradock.data.formats import Completion, Conversation, PreferencePair
from loradock.data.formats.base import Message, Pairs, Side
from loradock.data.prepare import prepare
from loradock.data.read import files
from loradock.data.select import fit, split
from loradock.data.sources import samples
from loradock.errors import ConfigError, DataError, InputMissing, Problem

pytestmark = pytest.mark.thin(6)

SOURCE = Path(__file__).resolve().parents[2] / "src" / "loradock" / "data"
SAID, ANSWERED = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
TALK = [SAID, ANSWERED]
ALPACA = {"instruction": "2+2?", "output": "4"}
PLAIN = [("user", "2+2?"), ("assistant", "4")]
WITH_SYSTEM = [("system", "Be terse."), *PLAIN]
WITH_INPUT = [("user", "2+2?\n\nIn words."), ("assistant", "4")]
PREFERRED = PreferencePair(Completion("2+2?", "4"), Completion("2+2?", "5"))
BETTER = PreferencePair(
    Conversation((Message("user", "2+2?"), Message("assistant", "4")), given=1),
    Conversation((Message("user", "2+2?"), Message("assistant", "5")), given=1),
)
LIKED = {"prompt": "2+2?", "completion": "4", "thumbs_up": True}

FOLLOWED: dict[str, list[tuple[list[dict[str, Any]], dict[str, Any], Any]]] = {
    "formats/guess.undetected": [
        ([{"question": "2+2?", "answer": "4"}], {}, PLAIN),
        ([{"query": "2+2?", "response": "4"}], {}, PLAIN),
        ([{"input": "2+2?", "output": "4"}], {}, PLAIN),
        ([{"input": "2+2?", "target": "4"}], {}, PLAIN),
        ([{"input": "2+2?", "output": "4", "context": "In words."}], {}, WITH_INPUT),
        ([{"system": "Be terse.", "input": "2+2?", "output": "4"}], {}, WITH_SYSTEM),
        ([{"problem": "2+2?", "solution": "4", "level": 1}], {}, PLAIN),
        ([{"Instruction": "2+2?", "Input": "In words.", "Output": "4"}], {}, WITH_INPUT),
        ([{"a": "2+2?", "b": "4"}], {}, PLAIN),
        ([{"id": 3, "article": "2+2?", "summary": "4"}], {}, PLAIN),
        ([{"dialog": TALK}], {}, PLAIN),
        ([{"items": TALK}], {}, PLAIN),
        ([{"turns": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}], {}, PLAIN),
        ([{"dialogue": ["2+2?", "4"]}], {}, PLAIN),
        ([{"sentence": "Four.", "label": 1}], {}, "Four."),
        ([{"title": "T", "body": "Four."}], {}, "Four."),
        ([{"instruction": "2+2?", "ouput": "4"}], {}, PLAIN),
    ],
    "columns._lost": [
        ([{**ALPACA, "context": "In words."}], {}, WITH_INPUT),
        ([{"system": "Be terse.", "prompt": "2+2?", "completion": "4"}], {}, WITH_SYSTEM),
        ([{"prompt": "2+2?", "completion": "4", "system_message": "Be terse."}], {}, WITH_SYSTEM),
        ([{**ALPACA, "Input": "In words.", "system_prompt": " "}], {}, WITH_INPUT),
        ([{"messages": TALK, "system_prompt": "Be terse."}], {}, WITH_SYSTEM),
        ([{**ALPACA, "context": ["In words."]}], {}, PLAIN),
        ([{"text": "Four.", "context": "Two and two?"}], {}, "Four."),
        ([{"system": "Be terse.", "prompt": "2+2?", "completion": "4"}], {"format": "prompt-completion"}, WITH_SYSTEM),
    ],
    "columns._check_meaning": [
        ([{**ALPACA, "tools": [{"name": "add"}]}], {}, PLAIN),
        ([{**ALPACA, "weight": 0.5}], {}, PLAIN),
        ([{**ALPACA, "loss_mask": [0, 1]}], {}, PLAIN),
    ],
    "sources.refuse_misfits": [
        ([ALPACA] * 3, {"format": "messages"}, PLAIN),
        ([{"question": "2+2?", "answer": "4"}] * 3, {"format": "alpaca"}, PLAIN),
        ([{"question": "2+2?", "answer": "4"}] * 3, {"format": "messages"}, PLAIN),
        ([ALPACA] * 3, {"format": "alpaca", "fields": {"output": "response"}}, PLAIN),
        ([{"a": "2+2?", "b": "4"}] * 3, {"format": "alpaca"}, PLAIN),
    ],
    "sources.samples": [
        ([{"question": "2+2?", "answer": "4"}], {"fields": {"instruction": "question"}}, PLAIN),
        ([{"input": "2+2?", "output": "4"}], {"fields": {"instruction": "COLUMN"}}, PLAIN),
    ],
    "preference.refuse_pairs": [
        ([{"prompt": "2+2?", "accepted": "4", "rejected": "5"}], {}, PREFERRED),
        ([{"prompt": "2+2?", "winner": "4", "loser": "5"}], {}, PREFERRED),
        ([{"prompt": "2+2?", "response_j": "4", "response_k": "5"}], {}, PREFERRED),
    ],
    "formats/turns.refuse_answered": [
        ([{"messages": TALK, "responses": ["4", "5"], "scores": [9, 2]}], {"format": "scored-responses"}, BETTER),
        ([{"prompt": TALK, "chosen": "4", "rejected": "5"}], {}, BETTER),
        ([{"prompt": TALK, "completion": [ANSWERED]}], {}, PLAIN),
        (
            [{"prompt": [SAID], "chosen": "4", "rejected": "5"}, {"prompt": TALK, "chosen": "4", "rejected": "5"}],
            {},
            BETTER,
        ),
    ],
    "preference.refuse_verdict": [([LIKED, {**LIKED, "thumbs_up": False}], {}, Completion("2+2?", "4"))],
    "formats/turns.messages_of": [([{"messages": json.dumps(TALK)}], {}, PLAIN)],
    "formats/turns.conversation": [
        ([{"messages": [*TALK, SAID]}], {}, PLAIN),
        ([{"conversations": [{"from": "human", "value": "2+2?"}, {"from": "GPT", "value": "4"}, SAID]}], {}, PLAIN),
        ([{"messages": [{"speaker": turn["role"], "text": turn["content"]} for turn in (*TALK, SAID)]}], {}, PLAIN),
        ([{"messages": [{"type": turn["role"], "text": turn["content"]} for turn in (*TALK, SAID)]}], {}, PLAIN),
        ([{"messages": [{"human": "2+2?", "assistant": "4"}, {"human": "2+2?"}]}], {}, PLAIN),
    ],
}
"""By the function that gives the hint: rows, the settings of their source, and what is rendered then."""

WORDS = {
    "formats/compared._of_two": "followed in test_compared",
    "formats/compared._best_and_worst": "the same words as those of two answers",
    "formats/__init__.named": "a configuration refuses an unknown format before it is asked for by name",
    "sources.refuse_unseen": "lists the columns that there are",
    "sources.format_asked": "lists the fields of each format",
    "formats/base.convert_row": "hands on what a format says",
    "sources.problem": "hands on what a row's error says",
    "sources.broken": "followed in the tests of rows in a key and of other encodings",
    "shards._unclear": "hands on what test_splits follows",
    "shards.of_directory": "followed in test_splits",
    "shards.of_listing": "followed in test_remote",
    "shards._of_saved": "followed in test_splits",
    "shards._one_set": "followed in test_splits",
    "saved.files": "asks for a directory to be written or copied again",
    "saved._named_by": "asks for a directory to be copied again, or followed in test_hostile",
    "problems.check": "sums up hints of rows",
}
"""Functions whose hints are no setting of their own, and why."""
ROOMS = ("sources", "shards", "saved", "columns", "select", "preference", "problems", "formats/*")


def giving_hints() -> set[str]:
    """The functions of the rooms about rows and files that hand a `hint` or a `change` to an error."""
    found: set[str] = set()
    for file in (file for room in ROOMS for file in SOURCE.glob(f"{room}.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                keyword.arg in ("hint", "change")
                for call in ast.walk(node)
                if isinstance(call, ast.Call)
                for keyword in call.keywords
            ):
                found.add(f"{file.relative_to(SOURCE).with_suffix('')}.{node.name}")
    return found


def test_each_function_of_the_data_code_that_gives_a_hint_has_one_that_is_followed() -> None:
    inner = {"formats/fields.__init__"}
    of_lengths = {"select.split", "select.fit"}
    assert giving_hints() - inner == {*FOLLOWED, *WORDS} | of_lengths


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows in a file of the kind that its name says."""
    import pandas as pd

    if path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    elif path.suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def hint_of(path: Path, settings: dict[str, Any]) -> str:
    source = SourceConfig.model_validate({"path": str(path), **settings})
    try:
        found = [each for _, each in samples(source)]
    except ConfigError as error:
        return str(error.hint)
    return next(str(each.hint) for each in found if isinstance(each, Problem))


def followed(path: Path, settings: dict[str, Any], hint: str) -> tuple[Path, dict[str, Any]]:
    """The file and settings after doing what a hint says: its first remedy."""
    if command := re.search(r"(?:cat|zcat) .+ \| jq .*|python -c .*", hint, re.DOTALL):
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-c", command[0]], check=True, cwd=path.parent, env=environment, capture_output=True)
        return path.parent / f"{path.name.partition('.')[0]}.new.jsonl", settings
    new = obeyed(hint.removeprefix("--set objective=preference ").partition(", or to l")[0])
    assert set(new) > {"fields"} or new["fields"], hint
    assert "COLUMN" not in str(new), hint
    return path, {**settings, **new, "fields": {**settings.get("fields", {}), **new["fields"]}}


def rendered(path: Path, settings: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for _, sample in samples(SourceConfig.model_validate({"path": str(path), **settings})):
        if isinstance(sample, Conversation):
            found.append([(turn.role, turn.content) for turn in sample.messages])
        else:
            found.append(sample.completion if isinstance(sample, Completion) and not sample.prompt else sample)
    return found


CASES = [(name, *case) for name, cases in FOLLOWED.items() for case in cases]


@pytest.mark.parametrize(("name", "rows", "settings", "expected"), CASES)
def test_a_hint_that_is_followed_leads_to_rows_as_meant(
    name: str, rows: list[dict[str, Any]], settings: dict[str, Any], expected: Any, tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", rows)
    after = rendered(*followed(path, settings, hint_of(path, settings)))
    assert after == [expected] * len(after)
    assert len(after) == (1 if name.endswith("verdict") else len(rows))


@pytest.mark.parametrize("suffix", ["json", "csv", "parquet"])
@pytest.mark.parametrize("name", ["preference.refuse_verdict", "formats/turns.messages_of"])
def test_a_command_is_one_for_the_kind_of_file(name: str, suffix: str, tmp_path: Path) -> None:
    ((rows, settings, expected),) = FOLLOWED[name]
    path = written(tmp_path / f"rows.{suffix}", rows)
    assert rendered(*followed(path, settings, hint_of(path, settings))) == [expected]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_follows_the_answer_is_removed_of_the_rows_that_need_it_alone(suffix: str, tmp_path: Path) -> None:
    asked, answered = {"speaker": "user", "text": "2+2?"}, {"speaker": "assistant", "text": "4"}
    calling = {"speaker": "function_call", "text": '{"name": "add", "arguments": {"a": 2}}'}
    talks = [[asked, answered, asked], [asked, answered, asked, calling], [asked, answered], [asked, asked]]
    path = written(tmp_path / f"rows.{suffix}", [{"messages": talk} for talk in talks])
    made, _ = followed(path, {}, hint_of(path, {}))
    rows = [json.loads(line)["messages"] for line in made.read_text().splitlines()]
    assert rows == [talks[0][:2], *talks[1:]]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_an_answer_that_ends_a_prompt_is_removed_of_the_rows_that_have_one_alone(suffix: str, tmp_path: Path) -> None:
    prompts = [TALK, [SAID], [*TALK, SAID], [SAID, ANSWERED, ANSWERED]]
    rows = [{"prompt": prompt, "chosen": "4", "rejected": "5"} for prompt in prompts]
    made, _ = followed(path := written(tmp_path / f"rows.{suffix}", rows), {}, hint_of(path, {}))
    found = [json.loads(line)["prompt"] for line in made.read_text().splitlines()]
    assert found == [[SAID], [SAID], [*TALK, SAID], [SAID]]


@pytest.mark.parametrize("name", ["my rows.json", "rows.json.gz", "it's.json"])
@pytest.mark.parametrize("key", ["data", "two words", 'a "b"', "it's"])
def test_rows_in_a_key_of_any_file_are_taken_out_by_the_command(name: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content = json.dumps({key: [ALPACA, ALPACA]}).encode()
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert rendered(*followed(path, {}, hint_of(path, {}))) == [PLAIN, PLAIN]


@pytest.mark.parametrize("name", ["my rows.jsonl", "rows.jsonl.gz"])
@pytest.mark.parametrize("turns", [TALK, [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]])
def test_lines_that_are_lists_of_turns_become_objects_by_the_command(
    name: str, turns: list[dict[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / name
    content = f"{json.dumps(turns)}\n{json.dumps(turns)}\n".encode()
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert rendered(*followed(path, {}, hint_of(path, {}))) == [PLAIN, PLAIN]


@pytest.mark.parametrize("name", ["my rows.jsonl", "rows.csv", "rows.json", "rows.tsv.gz"])
@pytest.mark.parametrize("encoding", ["utf-16", "cp1252"])
def test_text_of_another_encoding_is_converted_by_the_command(name: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / name
    row = {**ALPACA, "output": "vi\u00e9r"}
    between = "," if "csv" in name else "\t"
    text = json.dumps(row, ensure_ascii=False) if "json" in name else "\n".join(map(between.join, (row, row.values())))
    content = f"[{text}]".encode(encoding) if name.endswith("json") else f"{text}\n".encode(encoding)
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    subprocess.run(["bash", "-c", hint_of(path, {})], check=True, cwd=tmp_path, capture_output=True)
    made = next(each for each in tmp_path.iterdir() if ".new." in each.name)
    assert made.name == f"{name.partition('.')[0]}.new.{name.split('.')[1]}"
    assert rendered(made, {}) == [[PLAIN[0], ("assistant", "vi\u00e9r")]]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "2+2?", "answer": "4"}, PLAIN),
        ({"my question": "2+2?", "the answer": "4"}, PLAIN),
        ({**ALPACA, "context": "In words."}, WITH_INPUT),
    ],
)
def test_a_validation_file_is_changed_itself_and_no_source_for_it(
    row: dict[str, Any], expected: Any, suffix: str, tmp_path: Path
) -> None:
    path = written(tmp_path / f"rows.{suffix}", [row])
    with pytest.raises(DataError) as caught:
        look(DataConfig(sources=(), validation=str(path)), objective=OBJECTIVES["supervised"])
    (problem,) = caught.value.problems
    assert "--set" not in f"{problem.hint} {caught.value.hint}"
    assert rendered(*followed(path, {}, str(problem.hint))) == [expected]


def test_a_column_of_several_words_is_quoted_for_the_shell(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", [{"my question": "2+2?", "the answer": "4"}] * 2)
    words = shlex.split(hint_of(path, {}).rpartition(": ")[2])
    assert words[1] == "data.sources.0.fields.instruction=my question"
    assert words[3] == "data.sources.0.fields.output=the answer"


@pytest.mark.parametrize("name", ["no such folder/rows.jsonl", "my folder/rows.jsonl"])
def test_a_path_that_is_not_there_is_looked_for_in_the_folder_that_is(name: str, tmp_path: Path) -> None:
    (tmp_path / "my folder").mkdir()
    with pytest.raises(InputMissing) as caught:
        files(SourceConfig(path=str(tmp_path / name)))
    folder = tmp_path / ("my folder" if name.startswith("my") else "")
    assert shlex.split(str(caught.value.hint)) == ["ls", str(folder)]


@pytest.mark.parametrize("row", [{"question": "a", "answer": "b"}, {"a": 1}, {"query": "a", "answers": ["b"]}])
def test_rows_to_answer_from_are_told_nothing_of_formats_to_embed(row: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", [row])
    ((_, problem),) = samples(SourceConfig(path=str(path)))
    assert isinstance(problem, Problem)
    assert "tevatron" not in problem.what
    written(path, [{"query": "a", "positives": ["b"], "pos": None}])
    ((_, problem),) = samples(SourceConfig(path=str(path), ignore=("query",)))
    assert isinstance(problem, Problem)
    assert "tevatron" in problem.what


@pytest.mark.parametrize(
    ("row", "kinds"),
    [
        ({"query": "2+2?", "positive": "4", "negative": "5"}, ()),
        ({"query": "2+2?", "positive": "4", "negative": "5"}, ("pairs",)),
        ({"question": "2+2?", "answer": "4", "neg": "5"}, ("pairs",)),
    ],
)
def test_an_objective_that_embeds_is_told_how_columns_become_queries_with_passages(
    row: dict[str, str], kinds: tuple[str, ...], tmp_path: Path
) -> None:
    """Not how they become rows to answer from, which it would refuse."""
    path = written(tmp_path / "rows.jsonl", [row])
    objective = replace(OBJECTIVES["embedding"], samples=frozenset(kinds))
    with pytest.raises(DataError) as caught:
        look(DataConfig(sources=(SourceConfig(path=str(path)),)), objective=objective)
    hint = str(caught.value.problems[0].hint)
    assert rendered(*followed(path, {}, hint)) == [Pairs(Side("", "2+2?"), (Side("", "4"),), (Side("", "5"),))]


def test_hints_about_lengths_and_validation_hold_for_the_rows_that_there_are(
    tmp_path: Path, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> None:
    def prepared(rows: int) -> Any:
        path = written(tmp_path / f"{rows}.jsonl", [{"instruction": "2+2?" * 40, "output": "4" * 9}] * rows)
        data = DataConfig(sources=(SourceConfig(path=str(path)),), template="alpaca")
        return prepare(data, tokenizer=tokenizers["byte-level"], cache_dir=tmp_path / "cache")

    for rows in (1, 2, 9):
        with pytest.raises(ConfigError, match="leaves none to train on") as caught:
            split(prepared(rows), validation=rows, seed=0)
        given = re.search(r"data\.validation=([\d.]+)", str(caught.value.hint))
        assert given
        trained, _ = split(prepared(rows), validation=float(given[1]), seed=0)
        assert len(trained)
    every = np.arange(2)
    with pytest.raises(DataError, match="every row is longer than 8 tokens") as error:
        fit(prepared(2), rows=every, max_length=8, long_rows="truncate")
    assert error.value.hint == "--set data.long_rows=split"
    assert fit(prepared(2), rows=every, max_length=8, long_rows="split").learned.sum() > 0
