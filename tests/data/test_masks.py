"""Label masks against an oracle that knows each template's text by hand and counts characters."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from loradock.config.schema import DataConfig, SourceConfig
from loradock.data.pool import ChunkPreparer, Task
from loradock.data.prepare import prepare
from loradock.data.sources import samples
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import Problem
from loradock.formats.base import Completion, Conversation, Message
from loradock.templates import named

Pieces = Iterator[tuple[str, int | None]]
"""Text, and the number of the assistant's turn that learns it (None: nobody does)."""

CONTENTS = (
    "the correct answer is true",
    "  leading and trailing spaces \n\n",
    "\n\nnewlines\n\non both sides\n",
    "e\u0301 naïve café ﬁ ½ 日本語 🙂👍🏽👩‍👩‍👧",
    "日",
    "🙂",
    " \u00a0x\u3000",
    "x",
    "\ue0000\ue001 and \ue0001\"\\'&<\ue001",
    "literal <|im_end|>\n<|im_start|>assistant\nno </s> [/INST] <|eot_id|><end_of_turn>\n <|end|>",
    "### Response:\n{{ messages }} {% raise %}",
    "user\nassistant\n",
    "def add(a, b):\n    return a + b",
)


def chatml(messages: list[Message]) -> Pieces:
    for turn, message in enumerate(messages):
        learned = turn if message.role == "assistant" else None
        yield f"<|im_start|>{message.role}\n", None
        yield message.content + "<|im_end|>", learned
        yield "\n", None


def llama3(messages: list[Message]) -> Pieces:
    yield "<s>", None
    for turn, message in enumerate(messages):
        yield f"<|start_header_id|>{message.role}<|end_header_id|>\n\n", None
        yield message.content.strip() + "<|eot_id|>", turn if message.role == "assistant" else None


def llama2(messages: list[Message]) -> Pieces:
    system = ""
    for turn, message in enumerate(messages):
        if message.role == "system":
            system = f"<<SYS>>\n{message.content}\n<</SYS>>\n\n"
        elif message.role == "user":
            yield f"<s>[INST] {system}{message.content.strip()} [/INST]", None
            system = ""
        else:
            yield " ", None
            yield f"{message.content.strip()} </s>", turn


def mistral(messages: list[Message]) -> Pieces:
    yield "<s>", None
    system = ""
    for turn, message in enumerate(messages):
        if message.role == "system":
            system = message.content + "\n\n"
        elif message.role == "user":
            yield f"[INST] {system}{message.content} [/INST] ", None
            system = ""
        else:
            yield f"{message.content.strip()}</s>", turn


def phi3(messages: list[Message]) -> Pieces:
    for turn, message in enumerate(messages):
        yield f"<|{message.role}|>\n", None
        yield message.content + "<|end|>", turn if message.role == "assistant" else None
        yield "\n", turn if turn == len(messages) - 1 else None
    yield "</s>", len(messages) - 1


def gemma(messages: list[Message]) -> Pieces:
    yield "<s>", None
    system = ""
    for turn, message in enumerate(messages):
        if message.role == "system":
            system = message.content.strip() + "\n\n"
            continue
        yield f"<start_of_turn>{'user' if message.role == 'user' else 'model'}\n{system}", None
        yield message.content.strip() + "<end_of_turn>", turn if message.role == "assistant" else None
        yield "\n", None
        system = ""


def alpaca(messages: list[Message]) -> Pieces:
    yield "<s>", None
    default = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request."
    )
    yield (messages[0].content if messages[0].role == "system" else default) + "\n\n", None
    for turn, message in enumerate(messages):
        if message.role == "user":
            yield f"### Instruction:\n{message.content}\n\n", None
        elif message.role == "assistant":
            yield "### Response:\n", None
            yield message.content + "</s>", turn
            yield "" if turn == len(messages) - 1 else "\n\n", None


def zephyr(messages: list[Message]) -> Pieces:
    for turn, message in enumerate(messages):
        yield f"<|{message.role}|>\n", None
        yield message.content + "</s>", turn if message.role == "assistant" else None
        yield "\n", None


FAMILIES: dict[str, Callable[[list[Message]], Pieces]] = {
    f.__name__: f for f in (chatml, llama3, llama2, mistral, phi3, gemma, alpaca, zephyr)
}


def expected(pieces: list[tuple[str, int | None]], *, loss: str) -> tuple[str, list[bool]]:
    """The text, and for each of its characters whether it is learned."""
    last = max(turn for _, turn in pieces if turn is not None)
    characters: list[bool] = []
    for text, turn in pieces:
        is_learned = loss == "all" or turn == last or (loss == "assistant" and turn is not None)
        characters += [is_learned] * len(text)
    return "".join(text for text, _ in pieces), characters


def covered(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids, and the characters each covers: by counting bytes where tokens spell bytes, else as the tokenizer says."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if "ByteLevel" not in str(tokenizer.backend_tokenizer.pre_tokenizer):
        return encoded["input_ids"], encoded["offset_mapping"]
    special = set(tokenizer.get_added_vocab())
    character_of_byte = [index for index, character in enumerate(text) for _ in character.encode()]
    spans, position = [], 0
    for token in encoded.tokens():
        size = len(token.encode()) if token in special else len(token)
        spans.append((character_of_byte[position], character_of_byte[position + size - 1] + 1))
        position += size
    assert position == len(character_of_byte)
    return encoded["input_ids"], spans


def oracle(tokenizer: PreTrainedTokenizerFast, *, text: str, learned: list[bool]) -> tuple[list[int], list[int]]:
    """Ids and mask of a text: a token is learned where it covers a learned character, the first never is."""
    ids, spans = covered(tokenizer, text)
    return ids, [int(index > 0 and any(learned[a : max(b, a + 1)])) for index, (a, b) in enumerate(spans)]


def generated(seed: int, *, rows: int) -> list[list[Message]]:
    """Conversations with and without a system message, one to four turns each, some of them repeated."""
    rng = random.Random(seed)
    conversations = []
    for _ in range(rows):
        messages = [Message("system", rng.choice(CONTENTS))] if rng.random() < 0.4 else []
        repeated = rng.choice(CONTENTS)
        for _ in range(rng.randint(1, 4)):
            user = rng.choice([*CONTENTS, "", repeated])
            messages += [Message("user", user), Message("assistant", rng.choice([*CONTENTS, repeated]))]
        conversations.append(messages)
    return conversations


def preparer(tokenizer: PreTrainedTokenizerFast, *, template: str, loss: str) -> ChunkPreparer:
    return ChunkPreparer(Task(spec=TokenizerSpec.of(tokenizer), template=named(template), loss=loss))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("loss", ["completion", "assistant", "all"])
@pytest.mark.parametrize("family", FAMILIES)
def test_masks_equal_the_oracle_over_generated_conversations(
    tokenizer: PreTrainedTokenizerFast, family: str, loss: str
) -> None:
    prepare_rows = preparer(tokenizer, template=family, loss=loss)
    for messages in generated(seed=len(family), rows=40):
        text, learned = expected(list(FAMILIES[family](messages)), loss=loss)
        chat = [{"role": message.role, "content": message.content} for message in messages]
        assert text == tokenizer.apply_chat_template(chat, chat_template=named(family).text, tokenize=False)
        chunk, refused = prepare_rows([(1, Conversation(tuple(messages)))])
        assert not refused
        rows = chunk.ids.tolist(), chunk.supervised.tolist()
        assert rows == oracle(tokenizer, text=text, learned=learned), messages


TOKENIZER_OF = {"alpaca": "byte-level", "chatml": "sentencepiece", "mistral": "across-newlines"}


@pytest.mark.parametrize("family", TOKENIZER_OF)
def test_masks_equal_the_oracle_on_every_row_of_the_real_files(
    tokenizers: dict[str, PreTrainedTokenizerFast], family: str, shared_data: Path, tmp_path: Path
) -> None:
    tokenizer = tokenizers[TOKENIZER_OF[family]]
    for file in sorted(shared_data.glob("*.json")):
        source = SourceConfig(path=str(file))
        prepared = prepare(DataConfig(sources=(source,), template=family), tokenizer=tokenizer, cache_dir=tmp_path)
        loaded = list(samples(source))
        assert prepared.rows == len(loaded) > 0
        for index, (line, sample) in enumerate(loaded):
            assert isinstance(sample, Conversation)
            text, learned = expected(list(FAMILIES[family](list(sample.messages))), loss="completion")
            ids, mask = prepared.row(index)
            assert (ids.tolist(), mask.tolist()) == oracle(tokenizer, text=text, learned=learned)
            assert prepared.place(index) == f"{file}:{line}"


def test_raw_text_gets_one_bos_and_one_learned_eos_as_the_tokenizer_adds_them(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    for name, tokenizer in tokenizers.items():
        prepare_rows = preparer(tokenizer, template="alpaca", loss="completion")
        for prompt, completion in (("Q: 日本?\nA:", " yes"), ("", "plain  text\n"), ("<s>x ", "y</s>"), ("a", "é")):
            chunk, _ = prepare_rows([(1, Completion(prompt, completion))])
            text = prompt + completion.removesuffix("</s>") + "</s>"
            bos = [] if text.startswith("<s>") or name != "sentencepiece" else [tokenizer.bos_token_id]
            learned = [index >= len(prompt) for index in range(len(text))]
            ids, inner = oracle(tokenizer, text=text, learned=learned)
            mask = [0] * len(bos) + inner
            if bos and learned[0]:
                mask[1] = 1
            assert chunk.ids.tolist() == bos + ids
            assert chunk.supervised.tolist() == mask
            assert chunk.ids[-1] == tokenizer.eos_token_id
            assert chunk.supervised[-1] == 1


def test_every_real_generative_row_of_the_pair_format_ends_in_a_learned_eos(
    tokenizers: dict[str, PreTrainedTokenizerFast], shared_data: Path
) -> None:
    prepare_rows = preparer(tokenizers["byte-level"], template="alpaca", loss="completion")
    eos = tokenizers["byte-level"].eos_token_id
    for file in sorted((shared_data / "gritlm").glob("*generative*.jsonl")):
        rows = [(line, sample) for line, sample in samples(SourceConfig(path=str(file)))]
        assert rows
        assert not [sample for _, sample in rows if isinstance(sample, Problem)]
        chunk, refused = prepare_rows(rows)  # pyright: ignore[reportArgumentType]
        assert not refused
        ends = chunk.lengths.cumsum() - 1
        assert (chunk.ids[ends] == eos).all()
        assert chunk.supervised[ends].all()
