"""What each template writes, known by hand: the text of a conversation, and which of its characters are learned."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from loradock.data.formats.base import Message

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


def chatml(messages: list[Message], bos: str = "<s>", eos: str = "</s>") -> Pieces:
    for turn, message in enumerate(messages):
        learned = turn if message.role == "assistant" else None
        yield f"<|im_start|>{message.role}\n", None
        yield message.content + "<|im_end|>", learned
        yield "\n", None


def llama3(messages: list[Message], bos: str = "<s>", eos: str = "</s>") -> Pieces:
    yield bos, None
    for turn, message in enumerate(messages):
        yield f"<|start_header_id|>{message.role}<|end_header_id|>\n\n", None
        yield message.content.strip() + "<|eot_id|>", turn if message.role == "assistant" else None


def llama2(messages: list[Message], bos: str = "<s>", eos: str = "</s>") -> Pieces:
    system = ""
    for turn, message in enumerate(messages):
        if message.role == "system":
            system = f"<<SYS>>\n{message.content}\n<</SYS>>\n\n"
        elif message.role == "user":
            yield f"{bos}[INST] {system}{message.content.strip()} [/INST]", None
            system = ""
        else:
            yield f" {message.content.strip()} {eos}", turn


def mistral(messages: list[Message], bos: str = "<s>", eos: str = "</s>") -> Pieces:
    yield bos, None
    system = ""
    for turn, message in enumerate(messages):
        if message.role == "system":
            system = message.content + "\n\n"
        elif message.role == "user":
            yield f"[INST] {system}{message.content} [/INST]", None
            system = ""
        else:
            yield f" {message.content.strip()}{eos}", turn


def phi3(messages: list[Message], bos: str = "<s>", eos: str = "</s>") -> Pieces:
    for turn, message in enumerate(messages):
        yield f"<|{message.role}|>\n", None
        yield message.content + "<|end|>", turn if message.role == "assistant" else None
        yield "\n", turn if turn == len(messages) - 1 else None
    yield eos, len(messages) - 1


def gemma(messages: list[Message], bos: str = "<s>", eos: str = "</s>") -> Pieces:
    yield bos, None
    system = ""
    for turn, message in enumerate(messages):
        if message.role == "system":
            system = message.content.strip() + "\n\n"
            continue
        yield f"<start_of_turn>{'user' if message.role == 'user' else 'model'}\n{system}", None
        yield message.content.strip() + "<end_of_turn>", turn if message.role == "assistant" else None
        yield "\n", None
        system = ""


def alpaca(messages: list[Message], bos: str = "<s>", eos: str = "</s>") -> Pieces:
    yield bos, None
    default = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request."
    )
    yield (messages[0].content if messages[0].role == "system" else default) + "\n\n", None
    for turn, message in enumerate(messages):
        if message.role == "user":
            yield f"### Instruction:\n{message.content}\n\n", None
        elif message.role == "assistant":
            yield "### Response:\n", None
            yield message.content + eos, turn
            yield "" if turn == len(messages) - 1 else "\n\n", None


def zephyr(messages: list[Message], bos: str = "<s>", eos: str = "</s>") -> Pieces:
    for turn, message in enumerate(messages):
        yield f"<|{message.role}|>\n", None
        yield message.content + eos, turn if message.role == "assistant" else None
        yield "\n", None


def gritlm(messages: list[Message], bos: str = "<s>", eos: str = "</s>") -> Pieces:
    yield bos, None
    for turn, message in enumerate(messages):
        if message.role == "assistant":
            yield "<|assistant|>\n", None
            yield message.content + eos, turn
            yield "" if turn == len(messages) - 1 else "\n", None
        else:
            yield f"<|{message.role}|>\n{message.content}\n", None


FAMILIES: dict[str, Callable[..., Pieces]] = {
    f.__name__: f for f in (chatml, llama3, llama2, mistral, phi3, gemma, alpaca, zephyr, gritlm)
}


def expected(pieces: list[tuple[str, int | None]], *, loss: str) -> tuple[str, list[bool]]:
    """The text, and for each of its characters whether it is learned."""
    last = max(turn for _, turn in pieces if turn is not None)
    characters: list[bool] = []
    for text, turn in pieces:
        is_learned = loss == "all" or turn == last or (loss in ("auto", "assistant") and turn is not None)
        characters += [is_learned] * len(text)
    return "".join(text for text, _ in pieces), characters


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
