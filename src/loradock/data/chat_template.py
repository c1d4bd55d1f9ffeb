"""The one place where a chat template is rendered: as transformers does, but within limits of time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loradock.data.spans import Span
from loradock.errors import ModelError
from loradock.files.foreign import said
from loradock.process.bounded import TooMuch, bounded

SECONDS, SECONDS_A_CHARACTER = 1.0, 1e-6
"""CPU time for one conversation; a usual one of 1,000 characters takes 0.0001 s."""
MEMORY_BYTES, MEMORY_BYTES_A_CHARACTER = 512 << 20, 64
WRITTEN, WRITTEN_A_CHARACTER = 1 << 20, 32
"""Characters that a template may write for a conversation: beyond, it is no template but a bomb."""


class Refused(Exception):
    """What a template says of a conversation that it does not render, or how it fails."""


def render(
    text: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    name: str,
    given: Mapping[str, Any],
    is_prompt: bool = False,
    is_tracked: bool = False,
) -> tuple[str, list[Span]]:
    """A conversation as the template `text` writes it, and what stands in its {% generation %} blocks (`is_tracked`).

    `name`: of the template, in errors. `is_prompt`: up to where the assistant is to speak. Raises Refused where the
    template cannot render this conversation, and ModelError where it takes time or memory without end.
    """
    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    said_characters = sum(_characters(message) for message in messages) + len(str(given.get("tools", "")))
    try:
        with bounded(
            seconds=SECONDS + SECONDS_A_CHARACTER * said_characters,
            more_bytes=MEMORY_BYTES + MEMORY_BYTES_A_CHARACTER * said_characters,
        ):
            rendered: Any = render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                chat_template=text,
                add_generation_prompt=is_prompt,
                return_assistant_tokens_mask=is_tracked,
                **given,
            )
    except TooMuch as limit:
        raise bomb(name, f"took {limit} to render a conversation of {said_characters:,} characters") from limit
    except TemplateError as error:
        raise Refused(str(error)) from error
    except Exception as error:  # a template is a program: it may divide by zero, recurse, overflow, or miss an index
        raise Refused(said(error)) from error
    (written,), generated = rendered
    if len(written) > WRITTEN + WRITTEN_A_CHARACTER * said_characters:
        raise bomb(name, f"wrote {len(written):,} characters for a conversation of {said_characters:,}")
    return written, generated[0] if generated else []


def _characters(message: Mapping[str, Any]) -> int:
    return sum(len(value if isinstance(value, str) else str(value)) for key, value in message.items() if key != "role")


def bomb(name: str, what: str) -> ModelError:
    """The error for a template that would never end."""
    return ModelError(
        f"the chat template ({name}) {what}", hint="fix the template, or name another: --set data.template=alpaca"
    )
