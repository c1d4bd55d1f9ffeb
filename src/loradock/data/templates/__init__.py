"""Chat templates that a configuration can name; each is one `NAME.jinja` file in this folder.

To add one: write `NAME.jinja` for the environment that transformers renders chat templates with, and put its name in
`NAMES`. Render `bos_token` where a conversation begins and an end-of-turn token (or `eos_token`) after each
assistant's text: training learns that token, so that generation stops.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path

from loradock.errors import ConfigError, InputMissing
from loradock.files import regular
from loradock.text.suggest import nearest

NAMES = ("alpaca", "chatml", "llama2", "llama3", "mistral", "phi3", "gemma", "zephyr", "gritlm")
DEFAULT = "alpaca"
OWN = "the tokenizer's own"
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


@dataclass(frozen=True, kw_only=True)
class Brought:
    """What a tokenizer brings: the `text` of its chat template (None: it has none) and the `file` of that.

    `named` are those of its templates that have a name, where none of them is the default.
    """

    text: str | None = None
    file: str = ""
    named: tuple[str, ...] = ()
    directory: str = ""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja chat template, the name it goes by in messages to the user, and why it is this one (`origin`)."""

    name: str
    text: str
    origin: str = field(default="", compare=False)

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
        raise ConfigError(
            f"data.template: there is no template named {name!r}; named templates: {', '.join(NAMES)}",
            hint=f"--set data.template={nearest(name, NAMES) or DEFAULT}, or a path that ends in .jinja",
        )
    text = files(__name__).joinpath(f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(name, text, "data.template names it, a shipped one")


def resolve(template: str, *, own: Brought) -> ChatTemplate:
    """The template that `data.template` asks for: auto, a name, or a .jinja file.

    auto takes what the tokenizer brings, and alpaca where that is nothing.
    Raises InputMissing for a file that cannot be read, ConfigError for an unknown name, and where the tokenizer brings
    several templates and none of them is the default.
    """
    if template == "auto":
        if own.text:
            return ChatTemplate(OWN, own.text, f"from its {own.file}" if own.file else "it brings one")
        check_default(own.named, directory=own.directory)
        return replace(named(DEFAULT), origin="the tokenizer brings no chat template (data.template auto)")
    if not template.endswith((".jinja", ".j2")):
        return named(template)
    hint = f"give the path of a UTF-8 .jinja file, or a name: --set data.template={DEFAULT}"
    return ChatTemplate(template, text_of(template, key="data.template", hint=hint), "data.template names the file")


def check_default(named: Sequence[str], *, directory: str) -> None:
    """ConfigError where a tokenizer's templates have names and none is the default: any choice would be a guess."""
    if not named:
        return
    file = Path(directory) / "additional_chat_templates" / f"{named[0]}.jinja"
    shipped = "--set data.template=chatml trains with one that is shipped"
    one = f"--set data.template={shlex.quote(str(file))} trains with one of them"
    there = 'to take one of them, call it "default" in tokenizer_config.json'
    raise ConfigError(
        f"data.template: the tokenizer{f' in {directory}' * bool(directory)} brings the chat templates "
        f"{', '.join(named)}, and none that is the default",
        hint=f"{one}, {shipped}" if file.is_file() else f"{shipped}; {there}",
    )


def text_of(template: str, *, key: str, hint: str) -> str:
    """The text of a template's file, which `key` names. InputMissing where it is no regular file, or cannot be read."""
    path = Path(template)
    try:
        return regular.read_text(path, most_bytes=MOST_BYTES)
    except OSError as error:
        raise InputMissing(f"{key}: {template} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise InputMissing(f"{key}: {template} cannot be read: {error}", hint=hint) from error
