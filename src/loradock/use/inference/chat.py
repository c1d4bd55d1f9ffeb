"""A conversation with a model: the turns so far, and the next answer, as training would have rendered them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loradock.data.call_readers import Unread
from loradock.data.formats.base import Message, ToolCall
from loradock.data.formats.fields import RowError
from loradock.data.formats.tools import definitions_of
from loradock.errors import DataError, InputMissing, UsageError
from loradock.files import foreign_json
from loradock.use.inference.answer_file import longest
from loradock.use.inference.decoding import Answer, Request, answers
from loradock.use.inference.opener import Opened
from loradock.use.inference.sampling import Sampling, seed_of

UNFINISHED = "\ufffd"
"""What a tokenizer writes for bytes that are not a whole character yet."""


class Chat:
    """Turns of user and assistant, after an optional system turn; `tools` are what the assistant may call."""

    def __init__(
        self,
        opened: Opened,
        *,
        system: str = "",
        tools: Sequence[dict[str, Any]] = (),
        max_new_tokens: int,
        sampling: Sampling,
    ) -> None:
        self._opened, self._sampling, self._max_new_tokens = opened, sampling, max_new_tokens
        self._tools = tools
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
        return self._answered([*self.messages, Message("user", text)], show)

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the last answer that have no result yet."""
        for results, message in enumerate(reversed(self.messages)):
            if message.role != "tool":
                return message.calls[results:]
        return ()

    def give_result(self, text: str, *, show: Callable[[str], None]) -> Answer | None:
        """Add the result of the first open call; once all have theirs, the answer to them.

        Raises UsageError where no call is open, and as `say` does.
        """
        if not self.open_calls:
            raise UsageError("no call waits for a result", hint="type a question")
        turns = [*self.messages, Message("tool", text, tool_name=self.open_calls[0].name)]
        if len(self.open_calls) > 1:
            self.messages = turns
            return None
        return self._answered(turns, show)

    def _answered(self, turns: list[Message], show: Callable[[str], None]) -> Answer:
        ids = self._opened.prompts(turns, tools=self._tools)
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
        self.messages = [*turns, self._turn(answer)]
        return answer

    def _turn(self, answer: Answer) -> Message:
        """The answer as a turn, with the calls that can be read in it."""
        syntax = self._opened.prompts.call_syntax if self._tools else None
        try:
            written = self._opened.written(answer.ids)
            calls = syntax.read(written, self._tools) if syntax else ()
        except Unread:
            calls = ()
        return Message("assistant", "" if calls else answer.text, calls=calls)


def tools_in(file: Path) -> tuple[dict[str, Any], ...]:
    """The definitions of tools in a JSON file: a list, or a single one. InputMissing, DataError."""
    try:
        return definitions_of(foreign_json.read(file), file.name)
    except OSError as error:
        raise InputMissing(f"{file} cannot be read: {error.strerror}", hint=f"ls -l {file}") from error
    except (RowError, ValueError) as error:
        example = '[{"name": "rain", "description": "...", "parameters": {"type": "object", "properties": {}}}]'
        raise DataError(f"{file} defines no tools: {error}", hint=f"a JSON list such as {example}") from error


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
