"""Data preparation with the tokenizers and chat templates that people train: exact masks, one BOS, a learned end.

The text of each template is written down by hand, and what a token covers is counted from the bytes that it spells.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest
from data.oracle import Pieces, alpaca, chatml, expected, generated, llama2, llama3, mistral
from data.test_turns import CONTENTS
from real.conftest import Real
from real.spelling import learned_tokens
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from loradock.data.formats.base import Completion, Conversation, Message
from loradock.data.render import Loss
from loradock.data.row_task import ChunkPreparer, Task
from loradock.data.templates import ChatTemplate
from loradock.data.tokenise import TokenizerSpec

pytestmark = pytest.mark.thin(1)

LOSSES: tuple[Loss, ...] = ("auto", "completion")
SMOLLM = Message("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
ANSWERS = (
    "Donaudampfschifffahrtsgesellschaftskapitän heißt das längste Wort.",
    "日本語とนี่และהנה: 🙂👍🏽👩‍👩‍👧 naïve café, ½ of 10⁻⁹",
    "def add(a, b):\n    return a + b  # 12345678.90\n\n\tdone",
)


def smollm2(messages: list[Message], bos: str, eos: str) -> Pieces:
    pieces = chatml(messages if messages[0].role == "system" else [SMOLLM, *messages])
    shift = 0 if messages[0].role == "system" else 1
    yield from ((text, turn if turn is None else turn - shift) for text, turn in pieces)


def qwen3(messages: list[Message], bos: str, eos: str) -> Pieces:
    """The last turn begins with an empty thought, which stands behind the generation prompt: it is learned."""
    for turn, message in enumerate(messages):
        is_assistant, is_last = message.role == "assistant", turn == len(messages) - 1
        yield f"<|im_start|>{message.role}\n", None
        thought = "<think>\n\n</think>\n\n" * is_last
        yield (
            thought + (message.content.lstrip("\n") if is_last else message.content) + "<|im_end|>",
            turn if is_assistant else None,
        )
        yield "\n", None


def gemma3(messages: list[Message], bos: str, eos: str) -> Pieces:
    yield bos, None
    system = ""
    for turn, message in enumerate(messages):
        if message.role == "system":
            system = message.content + "\n\n"
            continue
        yield f"<start_of_turn>{'user' if message.role == 'user' else 'model'}\n{system}", None
        yield message.content.strip() + "<end_of_turn>", turn if message.role == "assistant" else None
        yield "\n", None
        system = ""


def deepseek(messages: list[Message], bos: str, eos: str) -> Pieces:
    yield bos, None
    for turn, message in enumerate(messages):
        if message.role == "assistant":
            yield "<｜Assistant｜>", None
            yield message.content + eos, turn
        else:
            yield ("<｜User｜>" if message.role == "user" else "") + message.content, None


@dataclass(frozen=True, kw_only=True)
class Family:
    """A tokenizer, the template that it is prepared with (auto: its own), that template's text and what ends a turn."""

    name: str
    pieces: Callable[[list[Message], str, str], Pieces]
    end: str
    template: str = "auto"
    adds_bos: bool = True

    def __str__(self) -> str:
        return self.name


FAMILIES = (
    Family(name="smollm2", pieces=smollm2, end="<|im_end|>", adds_bos=False),
    Family(name="qwen3", pieces=qwen3, end="<|im_end|>", adds_bos=False),
    Family(name="llama3.1", pieces=llama3, end="<|eot_id|>"),
    Family(name="gemma3", pieces=gemma3, end="<end_of_turn>"),
    Family(name="gpt-oss", pieces=alpaca, end="<|return|>", adds_bos=False),
    Family(name="deepseek-v3", pieces=deepseek, end="<｜end▁of▁sentence｜>", adds_bos=False),
    Family(name="mistral-v1", pieces=llama2, end="</s>", template="llama2"),
    Family(name="mistral-v3", pieces=mistral, end="</s>", template="mistral"),
)
SLOW = ("gpt-oss", "gemma3")
"""Whose vocabulary of 200,000 tokens and more takes about half of the time of all seven: with --full alone."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A family's tokenizer and template."""

    family: Family
    tokenizer: PreTrainedTokenizerFast
    template: ChatTemplate
    preparers: dict[Loss, ChunkPreparer]

    def prepared(self, sample: Conversation | Completion, *, loss: Loss = "completion") -> tuple[list[int], list[int]]:
        """Ids and label mask of one row, by data preparation."""
        chunk, refused = self.preparers[loss]([(1, sample)])
        assert not refused, sample
        return chunk.ids.tolist(), chunk.supervised.tolist()


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=pytest.mark.full if each.name in SLOW else ()) for each in FAMILIES],
    ids=str,
)
def opened(request: pytest.FixtureRequest, real: Real) -> Opened:
    family: Family = request.param
    folder: Path = real(family.name)
    tokenizer = AutoTokenizer.from_pretrained(folder, clean_up_tokenization_spaces=False)
    spec = TokenizerSpec.of(tokenizer)
    template = spec.template(family.template)
    preparers: dict[Loss, ChunkPreparer] = {
        loss: ChunkPreparer(Task(spec=spec, template=template, loss=loss, special_tokens="as_control"))
        for loss in LOSSES
    }
    return Opened(family=family, tokenizer=tokenizer, template=template, preparers=preparers)


def normalised(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    """As the tokenizer composes characters before it looks words up; spaces apart, which the oracle knows about."""
    is_composing = "NFC" in str(tokenizer.backend_tokenizer.normalizer)
    return unicodedata.normalize("NFC", text) if is_composing else text


@pytest.mark.thin(6)
@pytest.mark.parametrize("loss", LOSSES)
def test_masks_equal_the_oracle_over_generated_conversations(opened: Opened, loss: Loss) -> None:
    tokenizer = opened.tokenizer
    for messages in generated(seed=7, rows=40):
        pieces = list(opened.family.pieces(messages, str(tokenizer.bos_token), str(tokenizer.eos_token)))
        text, _ = expected(pieces, loss=loss)
        chat = [{"role": message.role, "content": message.content} for message in messages]
        assert text == tokenizer.apply_chat_template(chat, chat_template=opened.template.text, tokenize=False)
        text, learned = expected([(normalised(tokenizer, piece), turn) for piece, turn in pieces], loss=loss)
        found = opened.prepared(Conversation(tuple(messages)), loss=loss)
        assert found == learned_tokens(tokenizer, text, learned), messages


def test_what_is_learned_reads_as_the_answers_and_the_token_that_ends_each(opened: Opened) -> None:
    asked = ["Say ½.", "続けて 🙂", "And in code?"]
    messages = [Message("system", "Be brief.")]
    for question, answer in zip(asked, ANSWERS, strict=True):
        messages += [Message("user", question), Message("assistant", answer)]
    ids, mask = opened.prepared(Conversation(tuple(messages)), loss="auto")
    marked = itertools.groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
    runs = [[token for token, _ in run] for is_learned, run in marked if is_learned]
    texts = [str(opened.tokenizer.decode(run)).strip(" ") for run in runs]
    end = opened.family.end
    thought = "<think>\n\n</think>\n\n" if opened.family.name == "qwen3" else ""
    assert [text.removesuffix(end).rstrip(" ") for text in texts] == [*ANSWERS[:-1], thought + ANSWERS[-1]]
    assert [run[-1] for run in runs] == [opened.tokenizer.convert_tokens_to_ids(end)] * 3


GPT_OSS = files("trl").joinpath("chat_templates/gptoss.jinja").read_text(encoding="utf-8")
GPT_OSS_ENDS = ("<|end|>", "<|return|>")


@pytest.mark.thin(6)
@pytest.mark.parametrize("content", CONTENTS)
def test_all_that_inference_would_generate_is_learned(opened: Opened, content: str) -> None:
    """Against each prompt as inference renders it; gpt-oss, whose package has no chat template, that of trl."""
    tokenizer, template = opened.tokenizer, opened.template.text
    inner = last = {"llama2": " </s>"}.get(opened.family.template, opened.family.end)
    prepare_rows = opened.preparers["auto"]
    if opened.family.name == "gpt-oss":
        template, (inner, last) = GPT_OSS, GPT_OSS_ENDS
        spec = TokenizerSpec.of(tokenizer)
        prepare_rows = ChunkPreparer(Task(spec=spec, template=ChatTemplate("gpt-oss", template), loss="auto"))
    question, answer = CONTENTS[content]
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}] * 2
    text = str(tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False))
    learned = [False] * len(text)
    for index, end in ((1, inner), (3, last)):
        prompt = str(
            tokenizer.apply_chat_template(
                chat[:index], chat_template=template, tokenize=False, add_generation_prompt=True
            )
        )
        assert text.startswith(prompt)
        reached = text.index(answer + end, len(prompt)) + len(answer + end)
        learned[len(prompt) : reached] = [True] * (reached - len(prompt))
    messages = tuple(Message("assistant" if index % 2 else "user", each["content"]) for index, each in enumerate(chat))
    chunk, refused = prepare_rows([(1, Conversation(messages))])
    assert not refused
    assert (chunk.ids.tolist(), chunk.supervised.tolist()) == learned_tokens(tokenizer, text, learned)


@pytest.mark.thin(6)
def test_special_tokens_in_contents_are_text_that_reads_as_it_was_written(opened: Opened) -> None:
    tokenizer, end = opened.tokenizer, opened.family.end
    special = sorted(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)[:20]
    spec = TokenizerSpec.of(tokenizer)
    rows = ChunkPreparer(Task(spec=spec, template=opened.template, loss="auto"))
    control = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}

    def found(answer: str) -> tuple[list[int], str]:
        chunk, refused = rows([(1, Conversation((Message("user", f"q{answer}"), Message("assistant", answer))))])
        assert not refused
        learned = chunk.ids[chunk.supervised.astype(bool)]
        return [each for each in chunk.ids.tolist() if each in control], str(tokenizer.decode(learned))

    (harmless, _), (spiteful, read) = found("x y"), found(f"x{end}y {''.join(special)} 日")
    assert spiteful == harmless
    assert f"x{end}y {''.join(special)} 日" in read
    assert read.rstrip().endswith(end)


def test_raw_text_has_the_tokenizers_bos_once_and_a_learned_eos(opened: Opened) -> None:
    tokenizer = opened.tokenizer
    for prompt, completion in (("Q: 日本?\nA:", " yes 🙂"), ("", "plain  text\n")):
        ids, mask = opened.prepared(Completion(prompt, completion))
        assert [token == tokenizer.bos_token_id for token in ids].count(True) == int(opened.family.adds_bos)
        assert (ids[0] == tokenizer.bos_token_id) == opened.family.adds_bos
        assert (ids[-1], mask[-1]) == (tokenizer.eos_token_id, 1)
        learned = [token for token, is_learned in zip(ids, mask, strict=True) if is_learned]
        read = str(tokenizer.decode(learned)).strip(" ")
        assert (completion.strip(" ") + str(tokenizer.eos_token)).endswith(read), "the very first token is not learned"
        assert len(read) > len(completion) / 2


@pytest.mark.thin(6)
def test_text_that_the_template_wrote_is_the_conversation_and_has_one_end_whatever_stands_behind_it(
    opened: Opened,
) -> None:
    tokenizer = opened.tokenizer
    rows = ChunkPreparer(Task(spec=TokenizerSpec.of(tokenizer), template=opened.template, loss="auto"))
    turns = [Message("user", "首都?"), Message("assistant", "東京 🙂")] * 2
    chat = [{"role": message.role, "content": message.content} for message in turns]
    text = str(tokenizer.apply_chat_template(chat, chat_template=opened.template.text, tokenize=False))
    conversation, _ = opened.prepared(Conversation(tuple(turns)))
    for tail in ("", "\n", " \n\n"):
        chunk, refused = rows([(1, Completion("", text.rstrip() + tail))])
        assert not refused
        ids, learned = chunk.ids.tolist(), chunk.ids[chunk.supervised.astype(bool)].tolist()
        kept = len(tokenizer(text.rstrip(), add_special_tokens=False)["input_ids"])
        assert ids[:kept] == conversation[:kept]
        end = tokenizer.convert_tokens_to_ids(opened.family.end)
        assert (learned[-1], learned.count(end)) == (end, ids.count(end))


def test_a_conversation_has_the_bos_that_its_template_writes_and_no_second_one(opened: Opened) -> None:
    ids, _ = opened.prepared(Conversation((Message("user", "Hello?"), Message("assistant", "Hello."))))
    assert ids[0] != ids[1]
    begins = ids[0] == opened.tokenizer.bos_token_id
    assert begins == (opened.family.name != "qwen3"), "Qwen has none"
