"""How an instruction and a text to embed become one text: a Jinja template with `instruction`, `text`, `prefix`,
`bos_token` and `eos_token`. To add a named one: its text in `NAMED`.

`prefix` is what the tokenizer writes before a text by itself: BOS or nothing. The special tokens are empty where the
tokenizer has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loradock.data.chat_template import MEMORY_BYTES, SECONDS
from loradock.data.templates import text_of
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ConfigError
from loradock.files.foreign import said
from loradock.process.bounded import TooMuch, bounded
from loradock.text.suggest import nearest

NAMED = {
    "gritlm": "{% set wish = instruction.strip('\t\n :') %}{{ bos_token }}"
    "{% if wish %}<|user|>\n{{ wish }}\n{% endif %}<|embed|>\n{{ text }}",
    "e5": "{{ prefix }}{% if instruction %}Instruct: {{ instruction }}\nQuery: {% endif %}{{ text }}{{ eos_token }}",
    "plain": "{{ prefix }}{{ instruction }}{{ text }}",
}
"""GritLM's (training/data.py of ContextualAI/gritlm), E5-mistral's (its model card), and the instruction as it is."""
MARK = "\ue000text\ue001"


@dataclass(frozen=True)
class EmbeddingTemplate:
    """A template, `name` as users know it; what stands before and after a text is rendered once an instruction."""

    name: str
    source: str
    tokens: dict[str, str]
    known: dict[str, tuple[str, str]] = field(default_factory=dict[str, "tuple[str, str]"], compare=False)

    def around(self, instruction: str) -> tuple[str, str]:
        """What stands before and after a text with this instruction. ConfigError where the template cannot say."""
        if instruction not in self.known:
            self.known[instruction] = self._rendered(instruction)
        return self.known[instruction]

    def _rendered(self, instruction: str) -> tuple[str, str]:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment: Any = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        try:
            with bounded(seconds=SECONDS, more_bytes=MEMORY_BYTES):
                text = environment.from_string(self.source).render(instruction=instruction, text=MARK, **self.tokens)
        except TooMuch as limit:
            raise ConfigError(f"embedding.template: {self.name} took {limit} for one instruction", hint=HINT) from limit
        except Exception as error:  # a template is a program: it may divide by zero, recurse, overflow
            line = getattr(error, "lineno", None)
            where = f"{self.name}, line {line}" if line else self.name
            raise ConfigError(f"embedding.template: {where}: {said(error)}", hint=HINT) from error
        before, *after = text.split(MARK)
        if len(after) != 1:
            what = f"embedding.template: {self.name} writes the text {len(after)} times: it must stand there once"
            raise ConfigError(what, hint=HINT)
        return before, after[0]


HINT = f"fix the template, or name one: --set embedding.template={next(iter(NAMED))}"


def resolve(template: str, *, spec: TokenizerSpec) -> EmbeddingTemplate:
    """The template that `embedding.template` asks for, for this tokenizer. Raises as `source`."""
    bos = spec.special_tokens.get("bos_token", "")
    prefix = bos if spec.bos_id in spec.prefix_ids else ""
    tokens = {"bos_token": bos, "eos_token": spec.special_tokens["eos_token"], "prefix": prefix}
    return EmbeddingTemplate(template, source(template), tokens)


def source(template: str) -> str:
    """The text of the template. InputMissing for a file that cannot be read, ConfigError for an unknown name."""
    if template.endswith((".jinja", ".j2")):
        return text_of(template, key="embedding.template", hint=HINT)
    if template in NAMED:
        return NAMED[template]
    what = f"embedding.template: there is no template named {template!r}; named templates: {', '.join(NAMED)}"
    near = nearest(template, NAMED) or "gritlm"
    raise ConfigError(what, hint=f"--set embedding.template={near}, or a path that ends in .jinja")
