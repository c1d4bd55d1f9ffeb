"""Published models' own chat templates with tools: ids and masks are those of transformers' rendering, by characters.

TRL, which the lock has, ships them. The oracle renders each conversation, and the one before each answer, with
transformers itself, ends each answer by a table by hand, and spells tokens by their bytes (`real.spelling`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.test_call_syntax import SHIPPED
from data.test_columns import loaded, written
from real.spelling import learned_tokens
from tiny import BASE
from transformers import AutoTokenizer
from whole_runs import train

from loradock.data import chat_template
from loradock.data.formats import convert_row, named
from loradock.data.formats.base import Message, ToolCall
from loradock.data.row_task import ChunkPreparer, Task
from loradock.data.structured import with_names
from loradock.data.tokenise import TokenizerSpec

pytestmark = pytest.mark.thin(2)

CONTROL = re.compile(r"<\|[\w/]+\|?>|<[\w]+\|>|<｜[^｜]+｜>|\[gMASK\]|<sop>")
RAIN = {
    "name": "rain",
    "description": 'Does it "rain"?',
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where?"}}},
}
ARGUMENTS: list[dict[str, Any]] = [
    {"city": 'Ö "quoted" \\ 日本 🙂'},
    {},
    {"city": "x", "nested": {"list": [1, 2.5, True, {"deep": "{}"}], "empty": {}}},
]


@dataclass(frozen=True)
class Shipped:
    """A template, what ends a turn of it, and whether a turn may have several calls."""

    name: str
    ends: tuple[str, ...]
    is_parallel: bool = True


TEMPLATES = (
    Shipped("qwen2_5", ("<|im_end|>",)),
    Shipped("qwen3", ("<|im_end|>",)),
    Shipped("qwen3_instruct_2507", ("<|im_end|>",)),
    Shipped("qwen3_vl", ("<|im_end|>",)),
    Shipped("qwen3_5_nothink", ("<|im_end|>",)),
    Shipped("qwen3_5_think", ("<|im_end|>",)),
    Shipped("qwen3_8", ("<|im_end|>",)),
    Shipped("llama3_1", ("<|eot_id|>",), is_parallel=False),
    Shipped("llama3_2", ("<|eot_id|>",), is_parallel=False),
    Shipped("gptoss", ("<|call|>", "<|return|>", "<|end|>"), is_parallel=False),
    Shipped("glm4moe", ()),
    Shipped("nemotron_3_nano", ("<|im_end|>",)),
    Shipped("lfm2_2_5", ("<|im_end|>",)),
    Shipped("gemma4_v5", ("<turn|>", "<|tool_response>")),
    Shipped("muse_glimmer", ("<|eot|>",)),
)


def call(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": "rain", "arguments": arguments}


def conversation(*, is_parallel: bool, has_loop: bool) -> list[dict[str, Any]]:
    """Turns as transformers takes them."""
    turns: list[dict[str, Any]] = [{"role": "system", "content": "Be terse."}]
    for group in [ARGUMENTS] if is_parallel else [[each] for each in ARGUMENTS]:
        calls = [{"type": "function", "function": call(arguments)} for arguments in group]
        turns += [{"role": "user", "content": "Rain? 日本"}, {"role": "assistant", "content": "", "tool_calls": calls}]
        if has_loop:
            turns += [{"role": "tool", "name": "rain", "content": "ja, 4 mm"}] * len(group)
            turns.append({"role": "assistant", "content": 'It "rains".'})
    return turns


def as_openai(turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": RAIN}], "messages": turns}


def as_openai_text(turns: list[dict[str, Any]]) -> dict[str, Any]:
    messages = json.loads(json.dumps(turns))
    for turn in messages:
        for each in turn.get("tool_calls", []):
            each["function"]["arguments"] = json.dumps(each["function"]["arguments"])
            turn["content"] = None
    return {"tools": json.dumps([RAIN]), "messages": messages}


def as_sharegpt(turns: list[dict[str, Any]]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt", "tool": "observation", "system": "system"}
    said: list[dict[str, Any]] = []
    for turn in turns:
        calls = [each["function"] for each in turn.get("tool_calls", [])]
        if calls:
            said.append({"from": "function_call", "value": json.dumps(calls if len(calls) > 1 else calls[0])})
        else:
            said.append({"from": names[turn["role"]], "value": turn["content"]})
    return {"tools": json.dumps([RAIN]), "conversations": said}


def as_hermes(turns: list[dict[str, Any]]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt", "tool": "tool", "system": "system"}
    said: list[dict[str, Any]] = []
    for turn in turns:
        calls = [json.dumps(each["function"], ensure_ascii=False) for each in turn.get("tool_calls", [])]
        text = "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in calls)
        result = f"<tool_response>\n{turn['content']}\n</tool_response>"
        said.append(
            {"from": names[turn["role"]], "value": result if turn["role"] == "tool" else text or turn["content"]}
        )
    return {"tools": json.dumps([RAIN]), "conversations": said}


def as_ms_swift(turns: list[dict[str, Any]]) -> dict[str, Any]:
    said: list[dict[str, Any]] = []
    for turn in turns:
        calls = [each["function"] for each in turn.get("tool_calls", [])]
        said += [{"role": "tool_call", "content": json.dumps(each)} for each in calls]
        if not calls:
            role = "tool_response" if turn["role"] == "tool" else turn["role"]
            said.append({"role": role, "content": turn["content"]})
    return {"tools": json.dumps([RAIN]), "messages": said}


FORMS = {
    "openai": as_openai,
    "openai, arguments as text": as_openai_text,
    "sharegpt": as_sharegpt,
    "hermes": as_hermes,
    "ms-swift": as_ms_swift,
}


@cache
def tokenizer_of(name: str) -> Any:
    """The demo's byte-level tokenizer with a template, and the control tokens that it writes."""
    template = (SHIPPED / f"{name}.jinja").read_text()
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.add_special_tokens({"additional_special_tokens": sorted({*CONTROL.findall(template)})})
    tokenizer.chat_template = template
    return tokenizer


def shared(one: str, other: str) -> int:
    """How many characters both begin with, but for the beginning of a tag that only one goes on with."""
    pairs = enumerate(zip(one, other, strict=False))
    length = next((number for number, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))
    return len(re.sub(r"<[^>]*$", "", one[:length]))


def pieces(tokenizer: Any, ids: list[int], mask: list[int]) -> list[str]:
    """The texts that are learned."""
    groups = groupby(zip(ids, mask, strict=False), key=lambda pair: pair[1])
    return [tokenizer.decode([token for token, _ in group]) for is_learned, group in groups if is_learned]


def oracle(shipped: Shipped, turns: list[dict[str, Any]]) -> tuple[str, list[bool]]:
    """The text, and for each character whether it is an answer's: from its generation prompt to what ends it."""
    tokenizer = tokenizer_of(shipped.name)
    given: dict[str, Any] = {"tools": [{"type": "function", "function": RAIN}], "tokenize": False}
    text = str(tokenizer.apply_chat_template(turns, **given))
    learned = [False] * len(text)
    place = 0
    for index, turn in enumerate(turns):
        if turn["role"] != "assistant":
            place = text.index(turn["content"], place) + len(turn["content"])
        else:
            prompt = str(tokenizer.apply_chat_template(turns[:index], add_generation_prompt=True, **given))
            start = place + shared(text[place:], prompt.rpartition(turns[index - 1]["content"])[2])
            following = [text.find(end, start) + len(end) for end in shipped.ends if end in text[start:]]
            stop = min(following) if following else len(text)
            if index < len(turns) - 1 and not following:
                history = str(tokenizer.apply_chat_template(turns[: index + 1], **given))
                stop = shared(text, history)
            learned[start:stop] = [True] * (stop - start)
    return text, learned


@pytest.mark.parametrize("has_loop", [False, True], ids=["one call", "loop"])
@pytest.mark.parametrize("shipped", TEMPLATES, ids=lambda each: each.name)
def test_ids_and_masks_of_every_form_are_those_of_the_template_at_inference(
    shipped: Shipped, has_loop: bool, tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(shipped.name)
    spec = TokenizerSpec.of(tokenizer)
    preparer = ChunkPreparer(Task(spec=spec, template=spec.template("auto"), loss="auto"))
    for is_parallel in (True, False) if shipped.is_parallel else (False,):
        turns = conversation(is_parallel=is_parallel, has_loop=has_loop)
        turns = turns if has_loop else turns[:3]
        text, learned = oracle(shipped, turns)
        ids, mask = learned_tokens(tokenizer, text, learned)
        for form, write in FORMS.items():
            (sample,) = loaded(written(tmp_path / "rows.jsonl", write(turns)))
            chunk, refused = preparer([(1, sample)])
            assert not refused, form
            found = chunk.ids.tolist()
            assert bool(found[: len(ids)] == ids), form
            assert found[len(ids) :] in ([], [tokenizer.eos_token_id]), form
            said = pieces(tokenizer, ids, chunk.supervised.tolist())
            assert said == pieces(tokenizer, ids, mask), form


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "llama3_1", "gptoss", "glm4moe"])
def test_the_number_of_renderings_does_not_grow_with_the_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TokenizerSpec.of(tokenizer_of(name))
    preparer = ChunkPreparer(Task(spec=spec, template=spec.template("auto"), loss="auto"))
    turns = conversation(is_parallel=False, has_loop=True)
    render, counts = chat_template.render, Counter[int]()

    def counted(*given: Any, **more: Any) -> Any:
        counts[rounds] += 1
        return render(*given, **more)

    monkeypatch.setattr(chat_template, "render", counted)
    for rounds in (1, 2, 20):
        sample = convert_row(named("messages"), {}, as_openai([turns[0], *turns[1:] * rounds]))
        chunk, refused = preparer([(1, sample)])
        assert not refused
        assert np.diff(chunk.supervised.astype(int)).tolist().count(1) == 6 * rounds
    assert counts[20] == counts[2]


def test_a_result_without_a_name_has_that_of_its_call() -> None:
    calls = (ToolCall("rain", {}, "b"), ToolCall("snow", {}, "a"))
    talk = [Message("assistant", "", calls=calls), Message("tool", "1", call_id="a"), Message("tool", "2")]
    assert [each.tool_name for each in with_names(talk)] == ["", "snow", "rain"]
    assert [each.tool_name for each in with_names(talk[1:])] == ["", ""]


def test_one_run_trains_on_rows_of_every_form_with_a_real_tool_template(llama: Path, tmp_path: Path) -> None:
    turns = conversation(is_parallel=True, has_loop=True)
    rows = {form: write(turns) for form, write in FORMS.items()}
    calls = json.dumps([call(arguments) for arguments in ARGUMENTS])
    rows["xlam"] = {"query": "Rain?", "tools": json.dumps([RAIN]), "answers": calls}
    files = [written(tmp_path / f"{form}.jsonl", *[row] * 4) for form, row in rows.items()]
    settings = ("train.max_steps=1", "lora.rank=4", f"data.template={SHIPPED / 'qwen2_5.jinja'}")
    run = train(tmp_path / "run", *settings, model=llama, data=files)
    record = json.loads((run.directory / "run.json").read_text())
    assert record["status"] == "finished"
    formats = [source["format"] for source in record["data"]["sources"]]
    assert formats == ["messages", "messages", "sharegpt", "sharegpt", "messages", "xlam"]
