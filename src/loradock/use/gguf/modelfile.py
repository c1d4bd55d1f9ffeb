"""An Ollama Modelfile: the GGUF file, the chat template in Go's language where it has such a form, and what ends.

A template is known by what it writes: it is compared with those that have a form in Go on a few conversations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.data import chat_template
from loradock.data.templates import named

ALPACA = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
TURNS = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
USER, ASSISTANT = '{{ if eq .Role "user" }}', '{{ else if eq .Role "assistant" }}'
# Each writes what the Jinja template of that name does but for BOS, which llama.cpp puts before it; EOS is its text.
FORMS: Mapping[str, str] = {
    "chatml": (
        "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
    ),
    "llama3": (
        "{{ range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n{{ .Content }}<|eot_id|>{{ end }}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "alpaca": (
        "{{ if .System }}{{ .System }}\n\n{{ else }}" + ALPACA + "{{ end }}"
        "{{ range .Messages }}" + USER + "### Instruction:\n{{ .Content }}\n\n"
        + ASSISTANT + "### Response:\n{{ .Content }}EOS\n\n{{ end }}{{ end }}### Response:\n"
    ),
    "mistral": (
        "{{ range $i, $_ := .Messages }}" + USER + "[INST] {{ if and $.System (le $i 1) }}{{ $.System }}\n\n{{ end }}"
        "{{ .Content }} [/INST]" + ASSISTANT + " {{ .Content }}EOS{{ end }}{{ end }}"
    ),
    "gemma": (
        "{{ range $i, $_ := .Messages }}" + USER + "<start_of_turn>user\n{{ if and $.System (le $i 1) }}{{ $.System }}"
        "\n\n{{ end }}{{ .Content }}<end_of_turn>\n"
        + ASSISTANT + "<start_of_turn>model\n{{ .Content }}<end_of_turn>\n{{ end }}{{ end }}<start_of_turn>model\n"
    ),
    "phi3": "{{ range .Messages }}<|{{ .Role }}|>\n{{ .Content }}<|end|>\n{{ end }}<|assistant|>\n",
    "zephyr": "{{ range .Messages }}<|{{ .Role }}|>\n{{ .Content }}EOS\n{{ end }}<|assistant|>\n",
    "turns": "{{ range .Messages }}<|{{ .Role }}|>\n{{ .Content }}EOS{{ end }}<|assistant|>\n",
}  # fmt: skip
SYSTEM = {"role": "system", "content": "Answer in rhyme."}
ASKED = {"role": "user", "content": "How tall is K2?"}
ANSWERED = {"role": "assistant", "content": "8,611 m."}
PROBES = ([ASKED], [SYSTEM, ASKED], [ASKED, ANSWERED, ASKED], [SYSTEM, ASKED, ANSWERED, ASKED])
MARK = "\u2042"
GO_MARKS = ("{{", '"""')


@dataclass(frozen=True, kw_only=True)
class Form:
    """A template that has a form in Go. `system`: the message that the model's own puts first where there is none.

    `tail`: what the model's own writes behind where the form ends, as `<think>` and `</think>` without thoughts.
    """

    name: str
    system: str | None
    tail: str = ""


def form_of(tokenizer: Any) -> Form | None:
    """The form of a tokenizer's chat template; None where it has none."""
    if not tokenizer.chat_template:
        return None
    rendered = [_written(tokenizer, tokenizer.chat_template, turns) for turns in PROBES]
    for name in FORMS:
        jinja = jinja_of(name)
        system = _default(tokenizer, jinja, rendered[0])
        first = [{"role": "system", "content": system}] if system else []
        conversations = [turns if turns[0] is SYSTEM else [*first, *turns] for turns in PROBES]
        texts = [_written(tokenizer, jinja, turns) for turns in conversations]
        tail = _tail(texts, rendered)
        if tail is not None:
            return Form(name=name, system=system, tail=tail)
    return None


def _tail(texts: Sequence[str | None], rendered: Sequence[str | None]) -> str | None:
    """What stands behind each text in what was rendered, the same for all; None where they differ otherwise."""
    tails = {
        written.removeprefix(text) if text is not None and written is not None and written.startswith(text) else None
        for text, written in zip(texts, rendered, strict=True)
    }
    tail = next(iter(tails)) if len(tails) == 1 else None
    return None if tail is None or any(mark in tail for mark in GO_MARKS) else tail


def with_arguments(template: str, arguments: Mapping[str, bool | int | float | str]) -> str:
    """A Jinja template that writes without these arguments what it writes with them."""
    readable = {name: value for name, value in arguments.items() if name.isidentifier()}
    return "".join(f"{{% set {name} = {json.dumps(value)} %}}" for name, value in readable.items()) + template


def jinja_of(name: str) -> str:
    """The Jinja template of a form."""
    return TURNS if name == "turns" else named(name).text


def writes_bos(tokenizer: Any) -> bool:
    """Whether the chat template puts BOS first. One whose first token is BOS by its text alone does not count."""
    written = _written(tokenizer, tokenizer.chat_template, [ASKED], bos=MARK)
    return bool(tokenizer.bos_token) and written is not None and written.startswith(MARK)


def _written(tokenizer: Any, template: str, turns: Sequence[Mapping[str, str]], *, bos: str = "") -> str | None:
    """The prompt of a conversation with `bos` in the place of BOS; None where the template refuses it."""
    special_tokens = {name: str(text) for name, text in tokenizer.special_tokens_map.items()}
    try:
        return chat_template.render(
            template, turns, name="the tokenizer's own", given=special_tokens | {"bos_token": bos}, is_prompt=True
        )[0]
    except chat_template.Refused:
        return None


def _default(tokenizer: Any, jinja: str, system_text: str | None) -> str | None:
    """The system message that a template writes by itself, where it is otherwise the one in `jinja`."""
    around = _written(tokenizer, jinja, [{"role": "system", "content": MARK}, ASKED])
    if (
        system_text is None
        or around is None
        or MARK not in around
        or system_text == _written(tokenizer, jinja, [ASKED])
    ):
        return None
    head, _, tail = around.partition(MARK)
    is_around = system_text.startswith(head) and system_text.endswith(tail) and len(system_text) > len(head) + len(tail)
    return system_text[len(head) : len(system_text) - len(tail)] if is_around else None


def text(file: Path, form: Form | None, *, eos: str, ends: Sequence[str]) -> str:
    """The Modelfile for a GGUF file beside it; `ends`: tokens that end an answer."""
    lines = [f"FROM ./{file.name}"]
    if form:
        lines.append(f'TEMPLATE """{FORMS[form.name].replace("EOS", eos)}{form.tail}"""')
        lines += [f'SYSTEM """{form.system}"""'] if form.system else []
    else:
        lines.append(
            "# No TEMPLATE: the chat template has no known form in Go. Ollama looks at tokenizer.chat_template"
        )
        lines.append("# in the GGUF file, and takes the nearest that it knows: compare its prompts with loradock chat.")
    lines += [f"PARAMETER stop {json.dumps(end, ensure_ascii=False)}" for end in ends]
    return "\n".join(lines) + "\n"
