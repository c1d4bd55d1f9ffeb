"""The table of templates x contents: learned is all between the prompt that inference renders and the turn's end.

The oracle renders each prompt with `add_generation_prompt` (where that opens a thought that the row does not have, it
is what both begin with), knows by hand what ends a turn, and counts characters. The templates are those that are
shipped here, and those of the families used most as the trl package ships them.
"""

from __future__ import annotations

import itertools
import re
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from data.conftest import CORPUS, wrapped
from data.test_masks import covered
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from loradock.data.formats.base import Conversation, Message
from loradock.data.render import Loss
from loradock.data.row_task import ChunkPreparer, Task
from loradock.data.templates import NAMES, ChatTemplate, named
from loradock.data.tokenise import TokenizerSpec

pytestmark = pytest.mark.thin(3)

Chat = list[dict[str, str]]
SPECIAL = re.compile(r"<[|｜][^|｜\s]+[|｜]>|<(?:start|end)_of_turn>|</?s>")
ENDS: dict[str, tuple[str, ...]] = {
    "alpaca": ("</s>", "</s>"),
    "chatml": ("<|im_end|>", "<|im_end|>"),
    "llama2": (" </s>", " </s>"),
    "llama3": ("<|eot_id|>", "<|eot_id|>"),
    "mistral": ("</s>", "</s>"),
    "phi3": ("<|end|>", "<|end|>\n</s>"),
    "gemma": ("<end_of_turn>", "<end_of_turn>"),
    "zephyr": ("</s>", "</s>"),
    "gritlm": ("</s>", "</s>"),
    "trl/cohere2": ("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",) * 2,
    "trl/cohere": ("<|END_OF_TURN_TOKEN|>",) * 2,
    "trl/deepseekv3": ("<｜end▁of▁sentence｜>",) * 2,
    "trl/deepseek_r1_distill": ("<｜end▁of▁sentence｜>",) * 2,
    "trl/gemma3": ("<end_of_turn>",) * 2,
    "trl/gptoss": ("<|end|>", "<|return|>"),
    "trl/llama3_1": ("<|eot_id|>",) * 2,
    "trl/llama3_2": ("<|eot_id|>",) * 2,
    "trl/phi3": ("<|end|>", "<|end|>\n</s>"),
    "trl/qwen2_5": ("<|im_end|>",) * 2,
    "trl/qwen3": ("<|im_end|>",) * 2,
    "trl/qwen3_5_nothink": ("<|im_end|>",) * 2,
    "trl/qwen3_5_think": ("<|im_end|>",) * 2,
    "trl/qwen3_instruct_2507": ("<|im_end|>",) * 2,
    "trl/nemotron_3_nano": ("<|im_end|>",) * 2,
}
"""What ends an inner turn, and the last one, as each template writes it."""

TRAINED = {
    name: ENDS[f"trl/{name}"]
    for name in (
        *("cohere", "cohere2", "gemma3", "gptoss", "phi3", "qwen2_5", "qwen3_instruct_2507"),
        *("qwen3", "qwen3_5_think", "qwen3_5_nothink"),
    )
}
"""Templates of which trl has a variant with {% generation %} blocks."""

CONTENTS = {
    "words": ("Say it.", "the correct answer is true"),
    "digits": ("2 + 2?", "4"),
    "many digits": ("pi?", "3.14159"),
    "cjk": ("首都?", "東京"),
    "emoji": ("mood?", "🙂👍🏽"),
    "newline": ("\nlist", "a\n\nb"),
    "markup": ("tag?", "<b>yes</b>"),
    "the question again": ("yes", "yes"),
}


def template_of(name: str) -> str:
    if not name.startswith("trl/"):
        return named(name).text
    file = name.removeprefix("trl/")
    return files("trl").joinpath(f"chat_templates/{file}.jinja").read_text(encoding="utf-8")


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose special tokens are the template's."""
    found = dict.fromkeys([*SPECIAL.findall(template_of(name)), "<s>", "</s>", "<unk>", "<end_of_turn>"])
    found |= dict.fromkeys(["<|system|>", "<|user|>", "<|assistant|>", "<|return|>"])
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(found),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return wrapped(backend)


def prepared(name: str, chat: Chat, *, template: str | None = None, loss: Loss = "auto") -> tuple[list[int], list[int]]:
    spec = TokenizerSpec.of(tokenizer_of(name))
    task = Task(spec=spec, template=ChatTemplate(name, template or template_of(name)), loss=loss)
    messages = tuple(Message(each["role"], each["content"]) for each in chat)  # pyright: ignore[reportArgumentType]
    chunk, refused = ChunkPreparer(task)([(1, Conversation(messages))])
    assert not refused, refused
    return chunk.ids.tolist(), chunk.supervised.tolist()


def chats(content: str) -> list[Chat]:
    """One turn; two turns; three turns, of which the last answer is another."""
    question, answer = CONTENTS[content]
    turn: Chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    last: Chat = [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "7"}]
    return [turn, turn + turn, turn + turn + last]


def by_inference(name: str, chat: Chat, *, loss: str) -> tuple[str, list[bool]]:
    """The rendered row, and for each character whether the model has to generate it."""
    tokenizer, template = tokenizer_of(name), template_of(name)
    text: str = tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False)  # pyright: ignore
    learned = [False] * len(text)
    turns = [index for index, message in enumerate(chat) if message["role"] == "assistant"]
    for index in turns if loss != "completion" else turns[-1:]:
        prompt: Any = tokenizer.apply_chat_template(
            chat[:index], chat_template=template, tokenize=False, add_generation_prompt=True
        )
        end = ENDS[name][index == len(chat) - 1]
        spoken = re.compile(re.escape(chat[index]["content"] + end))
        reached = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt, text, strict=False)))
        content = next(match for match in spoken.finditer(text, reached - 1 if reached < len(prompt) else reached))
        start = len(prompt) if text.startswith(prompt) else min(reached, content.start())
        learned[start : content.end()] = [True] * (content.end() - start)
    return text, learned


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("content", CONTENTS)
def test_all_that_inference_would_generate_is_learned(name: str, content: str) -> None:
    tokenizer = tokenizer_of(name)
    for chat in chats(content):
        for loss in ("auto", "completion", "assistant"):
            text, learned = by_inference(name, chat, loss=loss)
            ids, spans = covered(tokenizer, text)
            mask = [int(any(learned[first:last])) for first, last in spans]
            assert prepared(name, chat, loss=loss) == (ids, mask), (loss, text)


def test_the_table_holds_every_template_that_is_shipped() -> None:
    assert set(NAMES) <= set(ENDS)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("content", CONTENTS)
def test_trls_training_templates_learn_the_same_apart_from_the_prompt(name: str, content: str) -> None:
    """TRL's blocks: cut where the generation prompt goes on into them, and without white space behind the end."""
    tokenizer, training = tokenizer_of(f"trl/{name}"), template_of(f"trl/{name}_training")
    chat = chats(content)[0]
    theirs: Any = tokenizer.apply_chat_template(
        chat, chat_template=training, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    text, prompt = (
        str(tokenizer.apply_chat_template(each, chat_template=training, tokenize=False, add_generation_prompt=asks))
        for each, asks in ((chat, False), (chat[:-1], True))
    )
    assert text.startswith(prompt)
    ids, spans = covered(tokenizer, text)
    assert theirs["input_ids"] == ids
    mask = [
        int(is_told and last > len(prompt)) for is_told, (_, last) in zip(theirs["assistant_masks"], spans, strict=True)
    ]
    for template in (training, template_of(f"trl/{name}")):
        ids, ours = prepared(f"trl/{name}", chat, template=template)
        assert ids == theirs["input_ids"]
        last = len(ours) - ours[::-1].index(1)
        assert ours[:last] == mask[:last]
        assert not str(tokenizer.decode(ids[last:])).strip()


def test_a_prompt_that_opens_a_thought_where_the_row_has_none_is_left_where_they_part() -> None:
    name = "trl/deepseek_r1_distill"
    tokenizer = tokenizer_of(name)
    chat = [*chats("markup")[1]]
    chat[1] = {"role": "assistant", "content": "<think>so</think>yes"}
    ids, mask = prepared(name, chat)
    marked = "".join(
        text if learned else "·" * len(text)
        for text, learned in zip(tokenizer.convert_ids_to_tokens(ids), mask, strict=True)
    )
    end = "<｜end▁of▁sentence｜>"
    assert re.sub("·+", "·", marked) == f"·yes{end}·<b>yes</b>{end}"


@pytest.mark.parametrize("name", ["trl/gptoss", "trl/llama3_2"])
def test_a_dated_template_says_nothing_else_than_on_that_day(name: str) -> None:
    today = datetime.now()
    chat = [{"role": "system", "content": "Be brief."}, *chats("words")[1]]
    template = ChatTemplate(name, template_of(name))
    given: dict[str, Any]
    old: dict[str, Any]
    text, given = template.on(today.date().isoformat())
    tokenizer = tokenizer_of(name)
    one = str(tokenizer.apply_chat_template(chat, chat_template=template.text, tokenize=False))
    two = str(tokenizer.apply_chat_template(chat, chat_template=text, tokenize=False, **given))
    assert one == two
    old_text, old = template.on("1999-12-31")
    assert "1999" in str(tokenizer.apply_chat_template(chat, chat_template=old_text, tokenize=False, **old))
