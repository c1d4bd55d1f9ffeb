"""Chat templates that a configuration can name; each is one `NAME.jinja` file in this folder.

To add one: write `NAME.jinja` for the environment that transformers renders chat templates with, and put its name in
`NAMES`. Render `bos_token` where a conversation begins and an end-of-turn token (or `eos_token`) after each
assistant's text: training learns that token, so that generation stops.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path

from loradock.errors import ConfigError, InputMissing
from loradock.files import regular

NAMES = ("alpaca", "chatml", "llama2", "llama3", "mistral", "phi3", "gemma", "zephyr", "gritlm")
DEFAULT = "alpaca"
MOST_BYTES = 4 << 20
CONTROL = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "phi3": ("<|user|>", "<|assistant|>", "<|end|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
}
"""What a named template writes that is a token of its own in the vocabularies it was made for."""


ASKED = re.compile(r"""strftime_now\(\s*(?:format\s*=\s*)?(['"])(.*?)\1""")
TODAY = (
    "{% macro strftime_now(format) %}"
    "{{ loradock_dates[format] if format in loradock_dates else raise_exception('strftime_now(' ~ format ~ ')') }}"
    "{% endmacro %}\n"
)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja chat template and the name it goes by in messages to the user."""

    name: str
    text: str

    @property
    def is_dated(self) -> bool:
        """True where it writes today's date."""
        return "strftime_now" in self.text

    def on(self, date: str) -> tuple[str, dict[str, dict[str, str]]]:
        """The template as it writes that day (YYYY-MM-DD), and what it has to be rendered with.

        transformers gives templates no function of ours, so a macro takes the place of its own and looks the day up.
        """
        if not self.is_dated:
            return self.text, {}
        moment = datetime.fromisoformat(date)
        return TODAY + self.text, {
            "loradock_dates": {each: moment.strftime(each) for _, each in ASKED.findall(self.text)}
        }


def named(name: str) -> ChatTemplate:
    """The template of that name; ConfigError with the closest name where there is none."""
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1) or [DEFAULT]
        raise ConfigError(
            f"data.template: there is no template named {name!r}; named templates: {', '.join(NAMES)}",
            hint=f"--set data.template={close[0]}, or a path that ends in .jinja",
        )
    return ChatTemplate(name, files(__name__).joinpath(f"{name}.jinja").read_text(encoding="utf-8"))


def resolve(template: str, *, own: str | None) -> ChatTemplate:
    """The template that `data.template` asks for: auto, a name, or a .jinja file.

    `own` is the chat template that the tokenizer brings; auto takes it, and alpaca where there is none.
    Raises InputMissing for a file that cannot be read, ConfigError for an unknown name.
    """
    if template == "auto":
        return ChatTemplate("the tokenizer's own", own) if own else named(DEFAULT)
    if not template.endswith((".jinja", ".j2")):
        return named(template)
    hint = f"give the path of a UTF-8 .jinja file, or a name: --set data.template={DEFAULT}"
    return ChatTemplate(template, text_of(template, key="data.template", hint=hint))


def text_of(template: str, *, key: str, hint: str) -> str:
    """The text of a template's file, which `key` names. InputMissing where it is no regular file, or cannot be read."""
    path = Path(template)
    try:
        return regular.read_text(path, most_bytes=MOST_BYTES)
    except OSError as error:
        raise InputMissing(f"{key}: {template} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise InputMissing(f"{key}: {template} cannot be read: {error}", hint=hint) from error
