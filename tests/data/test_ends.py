"""What ends a row, over every template and ten endings: one end is learned, and no token of a row is spelled out twice.

Text that a chat template wrote has to become the tokens of the conversation that it wrote, however it ends.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from data.measured import Maker
from data.test_turns import ENDS, SPECIAL, Chat, chats, prepared, template_of, tokenizer_of

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.formats.base import Completion, Conversation, Message, Sample
from loradock.data.prepare import prepare
from loradock.data.row_task import ChunkPreparer, Task
from loradock.data.special import SpecialTokens
from loradock.data.templates import ChatTemplate
from loradock.data.tokenise import TokenizerSpec

pytestmark = pytest.mark.thin(3)

ENDINGS = {
    "nothing": "",
    "a space": " ",
    "a newline": "\n",
    "the end": "{end}",
    "the end and a newline": "{end}\n",
    "the end after a newline": "\n{end}",
    "the end and blank lines": "{end} \n\n",
    "eos": "</s>",
    "eos and a newline": "</s>\n",
    "eos and a tab": "</s>\t\n",
}


def end_of(name: str) -> str:
    """The special token that the last turn of a template ends with."""
    return SPECIAL.findall(ENDS[name][1])[-1]


def made(name: str, sample: Sample, *, special: SpecialTokens = "auto") -> tuple[list[str], list[str]]:
    """All tokens of a row, and those that are learned."""
    tokenizer = tokenizer_of(name)
    template = ChatTemplate(name, template_of(name))
    task = Task(spec=TokenizerSpec.of(tokenizer), template=template, loss="auto", special_tokens=special)
    chunk, refused = ChunkPreparer(task)([(1, sample)])
    assert not refused, refused
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(chunk.ids.tolist())]
    return tokens, [token for token, learned in zip(tokens, chunk.supervised, strict=True) if learned]


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_raw_text_of_every_ending_has_one_end_which_is_the_last_that_is_learned(name: str, ending: str) -> None:
    end = end_of(name)
    tail = ENDINGS[ending].format(end=end)
    for prompt in ("", "Two and two is"):
        _, learned = made(name, Completion(prompt, f" four.{tail}"))
        assert [token for token in learned if token in (end, "</s>")] == learned[-1:]
        assert learned[-1] == (end if end in tail else "</s>")


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_answer_of_every_ending_has_one_end_which_is_the_templates(name: str, ending: str) -> None:
    tail = ENDINGS[ending].format(end=end_of(name))
    question = Message("user", "2 + 2?")
    bare = made(name, Conversation((question, Message("assistant", "four."))))
    tokens, learned = made(name, Conversation((question, Message("assistant", f"four.{tail}"))))
    space = len(tail.partition("<")[0])
    assert learned[-1] == bare[1][-1]
    assert len(bare[0]) <= len(tokens) <= len(bare[0]) + space, "white space before the end is the answer's"


@pytest.mark.parametrize("name", ENDS)
def test_text_that_a_template_wrote_becomes_the_tokens_of_the_conversation(name: str) -> None:
    tokenizer = tokenizer_of(name)
    system: Chat = [{"role": "system", "content": "Be brief."}]
    for chat, tail in product([*chats("words"), system + chats("words")[0]], ("", "\n", " \n\n")):
        text = str(tokenizer.apply_chat_template(chat, chat_template=template_of(name), tokenize=False))
        ids, _ = prepared(name, chat)
        tokens, learned = made(name, Completion("", text + tail))
        expected = tokenizer.convert_ids_to_tokens(ids)
        kept = len(tokens) if not tail else len(tokenizer(text.rstrip())["input_ids"])
        assert tokens[:kept] == expected[:kept]
        assert learned[-1] == end_of(name)


def test_only_a_choice_makes_what_a_template_wrote_plain_text() -> None:
    text = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    tokens, _ = made("chatml", Completion("", text))
    assert [token for token in tokens if token.startswith("<|")] == ["<|im_start|>", "<|im_end|>"] * 2
    spelled, learned = made("chatml", Completion("", text), special="as_text")
    assert not [token for token in spelled if token.startswith("<|")]
    assert (learned[-1], spelled.count("</s>")) == ("</s>", 1)


@pytest.mark.parametrize(
    ("special", "said"),
    [
        ("auto", "warning: contents hold the text of special tokens (</s> 1x): trained as text, not as control tokens"),
        (
            "as_text",
            "contents hold the text of special tokens (</s> 1x): trained as text (data.special_tokens as_text)",
        ),
        ("as_control", "contents hold the text of special tokens (</s> 1x): trained as control tokens (data.special"),
    ],
)
def test_once_it_is_chosen_how_special_tokens_are_taken_nothing_warns_of_it(
    special: SpecialTokens, said: str, tmp_path: Path, make: Maker
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(
        json.dumps({"messages": [{"role": "user", "content": "</s>?"}, {"role": "assistant", "content": "a"}]})
    )
    data = DataConfig(sources=(SourceConfig(path=str(file)),), template="chatml", special_tokens=special)
    (note,) = prepare(data, tokenizer=make.tokenizer, cache_dir=tmp_path / "cache").notes
    assert note.startswith(said)
