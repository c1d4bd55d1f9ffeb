"""A prompt is what stands before the answer in a training row, id by id, for every template."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tiny import BASE
from transformers import AutoTokenizer

from loradock.data.formats.base import Completion, Conversation, Message
from loradock.data.formats.fields import RowError
from loradock.data.templates import NAMES, named
from loradock.training.lineage import Lineage
from loradock.use.inference.prompts import Prompts

ASKED = (Message("user", "Name a lamp."), Message("assistant", "a lamp"), Message("user", "And a horse?"))
ANSWER = Message("assistant", "a horse")


def prompts_of(template: str, *, special_tokens: Any = "auto", date: str | None = None, **settings: Any) -> Prompts:
    """With the demo's tokenizer, to which a template was given as an exported adapter has it."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.chat_template = named(template).text if template in NAMES else template
    lineage = Lineage(
        base=str(BASE),
        quantization="nf4",
        double_quant=True,
        compute_dtype="auto",
        special_tokens=special_tokens,
        conversations=True,
        date=date,
        **settings,
    )
    return Prompts.of(tokenizer, lineage)


@pytest.mark.parametrize("template", NAMES)
@pytest.mark.parametrize("turns", [1, 3])
def test_a_prompt_and_its_answer_are_the_ids_of_the_training_row(template: str, turns: int) -> None:
    prompts, asked = prompts_of(template), ASKED[3 - turns :]
    ids, ranges = prompts.row(Conversation((*asked, ANSWER)))
    first, last = ranges[-1]
    assert prompts(asked) == ids[:first]
    assert ids[last - 1] in prompts.stop_ids


@pytest.mark.parametrize("template", NAMES)
def test_a_prompt_never_begins_with_two_bos(template: str) -> None:
    """Llama 2 writes one before every turn of the user; all others have one in all."""
    bos = AutoTokenizer.from_pretrained(BASE).bos_token_id
    one = prompts_of(template)(ASKED[:1])
    assert one.count(bos) <= 1
    assert bos not in one[1:]


@pytest.mark.parametrize("special_tokens", ["as_text", "as_control"])
def test_a_special_tokens_text_in_a_content_is_encoded_as_training_does(special_tokens: str) -> None:
    prompts = prompts_of("chatml", special_tokens=special_tokens)
    eos = AutoTokenizer.from_pretrained(BASE).eos_token
    asked = (Message("user", f"Write {eos} here."),)
    ids, ranges = prompts.row(Conversation((*asked, ANSWER)))
    assert prompts(asked) == ids[: ranges[0][0]]
    end = AutoTokenizer.from_pretrained(BASE).eos_token_id
    assert (end in prompts(asked)) == (special_tokens == "as_control")


def test_the_date_of_training_is_written_and_not_todays() -> None:
    dated = "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    old, new = prompts_of(dated, date="1999-01-01"), prompts_of(dated)
    assert old(ASKED[:1]) != new(ASKED[:1])
    assert new(ASKED[:1]) == prompts_of(dated, date=datetime.now(UTC).date().isoformat())(ASKED[:1])


def test_arguments_of_the_template_and_tools_are_given_as_in_training() -> None:
    asking = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is false %}<no>{% endif %}"
    trained = prompts_of(asking, template_arguments={"enable_thinking": False})
    assert len(trained(ASKED[:1])) > len(prompts_of(asking)(ASKED[:1]))
    tools = [{"type": "function", "function": {"name": "rain"}}]
    assert len(prompts_of("chatml", tools="text")(ASKED[:1], tools=tools)) > len(prompts_of("chatml")(ASKED[:1]))


@pytest.mark.parametrize("special_tokens", ["auto", "as_text", "as_control"])
@pytest.mark.parametrize(
    "prompt", ["Two and two is", "Two</s> and two is", "<|user|>\nTwo and two?</s>\n<|assistant|>\n"]
)
def test_raw_text_is_a_prompt_as_rows_of_prompt_and_completion_begin(prompt: str, special_tokens: str) -> None:
    prompts = prompts_of("zephyr", special_tokens=special_tokens)
    ids, ranges = prompts.row(Completion(prompt, " four"))
    assert prompts.raw(prompt) == ids[: ranges[0][0]]


def test_a_template_that_refuses_a_plain_question_still_has_the_eos(tmp_path: Path) -> None:
    prompts = prompts_of("{{ raise_exception('never') }}")
    assert prompts.stop_ids == {AutoTokenizer.from_pretrained(BASE).eos_token_id}


@pytest.mark.parametrize("template", ["{{ '' }}", "{% if messages %}{% endif %}"])
def test_a_prompt_of_no_tokens_is_refused(template: str) -> None:
    with pytest.raises(RowError, match="the prompt has no tokens"):
        prompts_of(template)([Message("user", "a")])
