"""Tools and thoughts with Qwen 3's own template, known by hand, masks exact to the token; templates without tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from real.conftest import Real
from real.spelling import learned_tokens
from transformers import AutoTokenizer

from loradock.data.formats import convert_row, named
from loradock.data.remarks import CUT
from loradock.data.row_task import ChunkPreparer, Task
from loradock.data.tokenise import TokenizerSpec

pytestmark = pytest.mark.thin(1)

RAIN = {"type": "function", "function": {"name": "rain", "parameters": {"type": "object", "properties": {"city": {}}}}}
ARGUMENTS = {"city": 'Ö "x" 日本🙂', "at": {"days": [1, None, True], "none": {}}}
QUESTION, ANSWER = {"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "Yes.", "thinking": "easy"}
CALLS = [{"function": {"name": "rain", "arguments": json.dumps(ARGUMENTS)}}, {"function": {"name": "rain"}}]
CALLING = {"role": "assistant", "content": "Wait.", "reasoning_content": "which city", "tool_calls": CALLS}
ROW = {
    "tools": [RAIN],
    "messages": [QUESTION, CALLING, *[{"role": "tool", "content": "ja"}] * 2, ANSWER, QUESTION, CALLING],
}
CALLED = "Wait.\n" + "\n".join(
    f'<tool_call>\n{{"name": "rain", "arguments": {json.dumps(each, ensure_ascii=False)}}}\n</tool_call>'
    for each in (ARGUMENTS, {})
)
RESULTS = "<|im_start|>user\n<tool_response>\nja\n</tool_response>\n<tool_response>\nja\n</tool_response><|im_end|>\n"


def prepared(tokenizer: Any, row: dict[str, Any], **settings: Any) -> tuple[Any, list[Any]]:
    spec = TokenizerSpec.of(tokenizer)
    preparer = ChunkPreparer(Task(spec=spec, template=spec.template("auto"), loss="auto", **settings))
    return preparer([(1, convert_row(named("messages"), {}, row))])


def test_qwen_3_learns_calls_and_the_thoughts_that_its_template_keeps(real: Real) -> None:
    tokenizer = AutoTokenizer.from_pretrained(real("qwen3"))
    chunk, refused = prepared(tokenizer, ROW)
    assert not refused
    definitions = str(tokenizer.apply_chat_template([QUESTION], tools=[RAIN], tokenize=False))
    pieces = [
        (definitions + "<|im_start|>assistant\n", False),
        (CALLED + "<|im_end|>", True),
        ("\n" + RESULTS + "<|im_start|>assistant\n", False),
        ("Yes.<|im_end|>", True),
        ("\n<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n", False),
        ("<think>\nwhich city\n</think>\n\n" + CALLED + "<|im_end|>", True),
        ("\n", False),
    ]
    text = "".join(piece for piece, _ in pieces)
    learned = [is_learned for piece, is_learned in pieces for _ in piece]
    assert (chunk.ids.tolist(), chunk.supervised.tolist()) == learned_tokens(tokenizer, text, learned)
    assert [remark.name for remark in chunk.remarks].count(CUT) == 1


def test_all_thoughts_of_a_loop_of_tools_are_kept_and_learned(real: Real) -> None:
    tokenizer = AutoTokenizer.from_pretrained(real("qwen3"))
    chunk, refused = prepared(tokenizer, {**ROW, "messages": ROW["messages"][:5]})
    assert not refused
    assert CUT not in [remark.name for remark in chunk.remarks]
    learned = str(tokenizer.decode(chunk.ids[chunk.supervised.astype(bool)]))
    first = "<think>\nwhich city\n</think>\n\n" + CALLED + "<|im_end|>"
    assert learned == first + "<think>\neasy\n</think>\n\nYes.<|im_end|>"


def test_an_argument_of_the_template_is_part_of_what_was_prepared(real: Real) -> None:
    spec = TokenizerSpec.of(AutoTokenizer.from_pretrained(real("qwen3")))
    task = Task(spec=spec, template=spec.template("auto"), loss="auto")
    other = Task(spec=spec, template=spec.template("auto"), loss="auto", template_arguments={"enable_thinking": False})
    assert {*other.identity} - {*task.identity} == {"template_arguments"}


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", ["llama3.1", "smollm2"])
def test_a_template_without_tools_is_refused_by_name_and_prepared_as_text(real: Real, name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(real(name))
    _, refused = prepared(tokenizer, ROW)
    assert "the tokenizer's own" in refused[0][1]
    assert "--set data.tools=text" in refused[0][1]
    chunk, refused = prepared(tokenizer, ROW, tools="text", reasoning="drop")
    assert not refused
    learned = str(tokenizer.decode(chunk.ids[chunk.supervised.astype(bool)]))
    assert learned.count(json.dumps({"name": "rain", "arguments": ARGUMENTS}, ensure_ascii=False)) == 2
    assert "ja" not in learned
