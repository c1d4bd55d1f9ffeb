"""`data.reasoning: all_turns`: each thought is learned once, in a document that the template writes it in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from data.test_call_syntax import SHIPPED
from data.test_tools import TOOLS, renderer
from data.tool_templates import FAMILIES
from tiny import BASE, make_llama
from transformers import AutoTokenizer

from loradock.cli import cli
from loradock.config import no_effect
from loradock.config.load import load
from loradock.data.formats.base import Conversation, Message, ToolCall
from loradock.data.preferences.preparer import PreferenceTask
from loradock.data.prepare import prepare
from loradock.data.remarks import CUT
from loradock.data.select import split
from loradock.data.spans import Rendering
from loradock.data.tokenise import TokenizerSpec

QWEN = (SHIPPED / "qwen3.jinja").read_text()
GLM = next(family.template for family in FAMILIES if family.name == "glm")


def thinking(*thoughts: str, calls: bool = False) -> tuple[Message, ...]:
    turns: list[Message] = []
    for number, thought in enumerate(thoughts):
        turns += [Message("user", f"question {number}")]
        if calls:
            call = Message("assistant", "", calls=(ToolCall("rain", {}),), thought=f"{thought} calls")
            turns += [call, Message("tool", f"result {number}")]
        turns += [Message("assistant", f"answer {number}", thought=thought)]
    return tuple(turns)


def learned(rendering: Rendering) -> list[str]:
    return [rendering.text[first:last] for first, last in rendering.spans]


@pytest.mark.parametrize("template", [QWEN, GLM], ids=["qwen3", "glm"])
def test_each_thought_is_learned_once_where_the_template_writes_it(template: str) -> None:
    talk = Conversation(thinking("one", "two", "three"))
    render = renderer(template, reasoning="all_turns", loss="auto")
    documents = render.documents(talk)
    assert len(documents) == 3
    for number, (rendering, thought) in enumerate(zip(documents, ("one", "two", "three"), strict=True)):
        (text,) = learned(rendering)
        assert f"{thought}" in text
        assert f"answer {number}" in text
        prompt = render.prompt(talk.messages[: 2 * number + 1]).text
        assert rendering.text.startswith(prompt + text)
        assert rendering.text.count("</think>") - prompt.count("</think>") == 1
        assert CUT not in [remark.name for remark in rendering.remarks]


def test_turns_whose_thoughts_stand_in_one_text_are_one_document() -> None:
    talk = Conversation(thinking("one", "two", calls=True), tools=TOOLS)
    documents = renderer(QWEN, reasoning="all_turns").documents(talk)
    assert [len(learned(each)) for each in documents] == [2, 2]
    for thought, rendering in zip(("one", "two"), documents, strict=True):
        assert all(f"<think>\n{thought}" in text for text in learned(rendering))
    plain = Conversation((Message("user", "a"), Message("assistant", "b"), *thinking("one")))
    (document,) = renderer(QWEN, reasoning="all_turns").documents(plain)
    assert document == renderer(QWEN)(plain)


def test_thoughts_in_the_text_of_answers_are_learned_each_too() -> None:
    said = [Message("assistant", f"<think>\n{thought}\n</think>\n\nanswer") for thought in ("one", "two")]
    talk = Conversation((Message("user", "a"), said[0], Message("user", "b"), said[1]))
    documents = renderer(QWEN, reasoning="all_turns").documents(talk)
    assert [learned(each) for each in documents] == [[f"{each.content}<|im_end|>"] for each in said]
    assert [list(each.remarks) for each in documents] == [[], []]


def test_turns_that_are_context_stay_so_and_other_losses_make_no_documents() -> None:
    first, second = thinking("one", "two")[1::2]
    context = Message("assistant", first.content, is_learned=False, thought=first.thought)
    talk = Conversation((Message("user", "a"), context, Message("user", "b"), second))
    (document,) = renderer(QWEN, reasoning="all_turns").documents(talk)
    assert ["two" in text for text in learned(document)] == [True]
    assert CUT not in [remark.name for remark in document.remarks]
    for loss in ("completion", "all"):
        assert len(renderer(QWEN, reasoning="all_turns", loss=loss).documents(Conversation(thinking("a", "b")))) == 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with a template that cuts thoughts, and twelve rows of one to three of them, one bad."""
    folder = tmp_path_factory.mktemp("thoughts")
    (make_llama(folder / "base") / "chat_template.jinja").write_text(QWEN)
    lines: list[str] = []
    for number in range(12):
        turns = [
            {"role": turn.role, "content": f"{turn.content} of {number}"}
            | ({"reasoning_content": turn.thought} if turn.thought else {})
            for turn in thinking(*"abc"[: 1 + number % 3])
        ]
        lines.append(json.dumps({"messages": turns}))
    lines.insert(5, '{"messages": []}')
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def command(*words: object) -> Any:
    return CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False, standalone_mode=False).output


def test_documents_of_a_row_stay_on_one_side_of_the_split_and_are_counted_as_one(place: Path) -> None:
    settings = ["data.reasoning=all_turns", "data.on_bad_row=skip", "data.max_dropped=0.1"]
    shortcuts: dict[str, Any] = {"--model": str(place / "base"), "--data": [str(place / "rows.jsonl")]}
    config = load(None, overrides=settings, shortcuts=shortcuts).config
    tokenizer = AutoTokenizer.from_pretrained(place / "base")
    prepared = prepare(config.data, tokenizer=tokenizer, cache_dir=place / "cache")
    assert (prepared.rows, len(prepared.firsts), prepared.skipped_rows) == (24, 12, 1)
    assert "12 rows became 24 documents (data.reasoning all_turns)" in prepared.notes
    for seed in range(5):
        samples = split(prepared, validation=0.25, seed=seed)
        train, held_out = (prepared.documents_of(each) for each in samples)
        assert len({*prepared.lines[held_out].tolist()}) == 3
        assert not {*prepared.lines[train].tolist()} & {*prepared.lines[held_out].tolist()}
        assert sorted([*train, *held_out]) == list(range(24))
    config = config.model_copy(update={"data": config.data.model_copy(update={"reasoning": "as_template"})})
    whole = prepare(config.data, tokenizer=tokenizer, cache_dir=place / "cache")
    assert np.array_equal(whole.firsts, np.arange(12))


def test_data_stats_and_data_show_know_which_row_a_document_is_of(place: Path) -> None:
    words = ("--model", place / "base", "--data", place / "rows.jsonl", "--set", f"data.cache={place / 'cache'}")
    words = (
        *words,
        "--set",
        "data.reasoning=all_turns",
        "--set",
        "data.on_bad_row=skip",
        "--set",
        "data.max_dropped=0.1",
    )
    text = command("data", "stats", *words, "--set", "data.validation=3", "--json")
    found = json.loads(text[text.index("{\n") :])
    assert (found["rows"], found["train_rows"] + found["validation_rows"]) == (24, 24)
    assert not [each for each in found["suspicions"] if each["name"] in ("duplicate", "leaked-row") and each["rows"]]
    shown = command("data", "show", *words, "--row", 3)
    assert "rows.jsonl:2" in shown
    assert "⟦" in shown or "\x1b" in shown


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["data.loss=completion"], "learns the last answer of each row alone"),
        (["data.loss=all"], "learns all that a row says"),
        (["objective=preference"], "objective preference"),
        ([], None),
    ],
)
def test_where_no_row_becomes_several_documents_the_key_is_reported_as_idle(
    settings: list[str], why: str | None, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    shortcuts: dict[str, Any] = {"--model": str(tmp_path), "--data": [str(tmp_path / "rows.jsonl")]}
    config = load(
        None, overrides=["data.reasoning=all_turns", *settings], shortcuts=shortcuts, needs_inputs=False
    ).config
    found = [
        finding.what for rule in no_effect.WARNINGS for finding in rule(config) if "data.reasoning" in finding.keys
    ]
    assert [why in each for each in found if why] == [True] * bool(why)
    assert len(found) == bool(why)
    spec = TokenizerSpec.of(AutoTokenizer.from_pretrained(BASE))
    assert PreferenceTask.of(config.data, spec).reasoning == "as_template"
