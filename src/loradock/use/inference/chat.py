"""A conversation with a model: the turns so far, and the next answer, as training would have rendered them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loradock.data.formats.base import Message
from loradock.errors import UsageError
from loradock.use.inference.answer_file import longest
from loradock.use.inference.decoding import Answer, Request, answers
from loradock.use.inference.opener import Opened
from loradock.use.inference.sampling import Sampling, seed_of

UNFINISHED = "\ufffd"
"""What a tokenizer writes for bytes that are not a whole character yet."""


class Chat:
    """Turns of user and assistant, after an optional system turn."""

    def __init__(self, opened: Opened, *, system: str = "", max_new_tokens: int, sampling: Sampling) -> None:
        self._opened, self._sampling, self._max_new_tokens = opened, sampling, max_new_tokens
        self.messages: list[Message] = []
        self.ids: list[int] = []
        self.reset(system)

    def reset(self, system: str | None = None) -> None:
        """Forget all turns; `system` None keeps the system turn."""
        system_messages = [message for message in self.messages if message.role == "system"]
        self.messages = system_messages if system is None else [Message("system", system)] if system else []
        self.ids = []

    def say(self, text: str, *, show: Callable[[str], None]) -> Answer:
        """Add a user's turn and the answer to it, which `show` is given piece by piece.

        Raises RowError where the template refuses the turns, UsageError where they are too long; then both turns are
        left out.
        """
        turns = [*self.messages, Message("user", text)]
        ids = self._opened.prompts(turns)
        limit = longest(self._opened)
        remaining = self._max_new_tokens if limit is None else min(self._max_new_tokens, limit - len(ids))
        if remaining < 1:
            raise UsageError(f"the turns have {len(ids)} tokens, and the model knows {limit}", hint="/reset")
        seed = seed_of(self._sampling, row=str(ids), sample=0)
        pieces = Pieces(self._opened.tokenizer, show, stops=self._opened.prompts.stop_ids)
        request = Request(ids=ids, seed=seed)
        arguments: dict[str, Any] = {"max_new_tokens": remaining, "sampling": self._sampling, "on_token": pieces}
        (answer,) = answers(self._opened, [request], **arguments)
        pieces.end()
        self.ids = ids
        self.messages = [*turns, Message("assistant", answer.text)]
        return answer


class Pieces:
    """Tokens one by one to pieces of text, none of which ends within a character."""

    def __init__(self, tokenizer: Any, show: Callable[[str], None], *, stops: frozenset[int]) -> None:
        self._tokenizer, self._show, self._stops = tokenizer, show, stops
        self._ids: list[int] = []
        self._shown = ""

    def __call__(self, token: int) -> None:
        """Show what the token completes."""
        if token in self._stops:
            return
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if not text.endswith(UNFINISHED):
            self._put(text)

    def end(self) -> None:
        """Show what was kept back."""
        self._put(self._tokenizer.decode(self._ids, skip_special_tokens=True))

    def _put(self, text: str) -> None:
        if text.startswith(self._shown) and text != self._shown:
            self._show(text[len(self._shown) :])
            self._shown = text
