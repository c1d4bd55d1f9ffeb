"""An Ollama Modelfile: the GGUF file, the chat template in Go's language where it is one that we know, and the ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from loradock.data.templates import named

ALPACA = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
USER, ASSISTANT = '{{ if eq .Role "user" }}', '{{ else if eq .Role "assistant" }}'
# Each writes what the Jinja template of that name does, but for BOS, which llama.cpp puts before it.
TEMPLATES = {
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
}  # fmt: skip


def name_of(template: str | None) -> str | None:
    """The name of a chat template of ours that can be written for Ollama; None for another."""
    return next((name for name in TEMPLATES if template == named(name).text), None)


def text(file: Path, *, template: str | None, eos: str, ends: Sequence[str]) -> str:
    """The Modelfile for a GGUF file beside it. `template`: the model's Jinja chat template; `ends`: tokens that end."""
    lines = [f"FROM ./{file.name}"]
    if name := name_of(template):
        lines.append(f"# chat template: {name}")
        lines.append(f'TEMPLATE """{TEMPLATES[name].replace("EOS", eos)}"""')
    else:
        lines.append("# No TEMPLATE: the chat template is none that has a form in Go here; Ollama looks at")
        lines.append("# tokenizer.chat_template in the GGUF file. Compare its prompts with loradock chat before use.")
    lines += [f"PARAMETER stop {json.dumps(end, ensure_ascii=False)}" for end in ends]
    return "\n".join(lines) + "\n"
