"""Chat templates with tools in the shapes that model families have, and what each writes, known by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loradock.data.formats.base import Conversation, Message

Pieces = Iterator[tuple[str, bool]]
"""Text, and whether it is learned."""


def dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


HERMES = """{% if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}Tools:
{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant
{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>tool
{{ m.content }}<|im_end|>
{% elif m.role == 'user' %}<|im_start|>user
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def hermes(talk: Conversation) -> Pieces:
    messages = list(talk.messages)
    system = [messages.pop(0).content] if messages[0].role == "system" else []
    tools = ["Tools:", *(dumped(tool["function"]) for tool in talk.tools), ""] if talk.tools else []
    if system or tools:
        yield "<|im_start|>system\n" + "\n".join([*system, *tools]) + "<|im_end|>\n", False
    for message in messages:
        is_answer = message.role == "assistant"
        calls = [
            f'<tool_call>\n{{"name": "{call.name}", "arguments": {dumped(call.arguments)}}}\n</tool_call>'
            for call in message.calls
        ]
        yield f"<|im_start|>{message.role}\n", False
        yield message.content + "".join(calls) + "<|im_end|>", is_answer
        yield "\n", False


MISTRAL = """{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif -%}
{%- for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'system' %}[SYSTEM]{{ m.content }}[/SYSTEM]
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.tool_call_id }}:{{ m.content }}[/TOOL_RESULTS]
{%- elif m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}
{%- if call.id is undefined or call.id | length != 9 %}{{ raise_exception('an id has nine characters') }}{% endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{%- if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}
{%- else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"""


def mistral(talk: Conversation) -> Pieces:
    yield "<s>", False
    if talk.tools:
        yield f"[AVAILABLE_TOOLS]{dumped(list(talk.tools))}[/AVAILABLE_TOOLS]", False
    number, results = 0, 0
    for message in talk.messages:
        if message.role == "tool":
            yield f"[TOOL_RESULTS]call{results:05d}:{message.content}[/TOOL_RESULTS]", False
            results += 1
        elif message.calls:
            written = []
            for call in message.calls:
                written.append(
                    f'{{"name": "{call.name}", "arguments": {dumped(call.arguments)}, "id": "call{number:05d}"}}'
                )
                number += 1
            yield f"[TOOL_CALLS][{', '.join(written)}]</s>", True
        elif message.role == "assistant":
            yield f" {message.content.strip()}</s>", True
        else:
            name = "INST" if message.role == "user" else "SYSTEM"
            yield f"[{name}]{message.content}[/{name}]", False


LLAMA = """{{ bos_token }}<|start_header_id|>system<|end_header_id|>

{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}
{% endif %}{% for tool in tools or [] %}{{ tool | tojson(indent=4) }}
{% endfor %}<|eot_id|>
{%- for m in messages %}{% if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{{- '<|start_header_id|>assistant<|end_header_id|>' }}

{% set call = m.tool_calls[0].function -%}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>

{{ m.content | tojson }}<|eot_id|>
{%- elif m.role != 'system' %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>
{%- endif %}{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""


def llama(talk: Conversation) -> Pieces:
    messages = list(talk.messages)
    system = messages.pop(0).content.strip() + "\n" if messages[0].role == "system" else ""
    tools = "".join(json.dumps(tool, ensure_ascii=False, indent=4) + "\n" for tool in talk.tools)
    yield f"<s><|start_header_id|>system<|end_header_id|>\n\n{system}{tools}<|eot_id|>", False
    for message in messages:
        role = {"tool": "ipython"}.get(message.role, message.role)
        yield f"<|start_header_id|>{role}<|end_header_id|>\n\n", False
        if message.calls:
            (call,) = message.calls
            yield f'{{"name": "{call.name}", "parameters": {dumped(call.arguments)}}}<|eot_id|>', True
        elif message.role == "tool":
            yield dumped(message.content) + "<|eot_id|>", False
        else:
            yield message.content.strip() + "<|eot_id|>", message.role == "assistant"


DEEPSEEK = """{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for tool in tools or [] %}
## {{ tool.function.name }}: {{ tool.function | tojson }}
{%- endfor %}
{%- set ns = namespace(after_tool=false) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.after_tool = false %}<|user|>{{ m.content }}
{%- elif m.role == 'assistant' and m.content is none %}<|assistant|>
{%- for call in m.tool_calls %}<call>{{ call.function.name + '\n' + call.function.arguments }}</call>{% endfor %}
{{- eos_token }}
{%- elif m.role == 'assistant' %}
{%- if not ns.after_tool %}<|assistant|>{% endif %}{% set ns.after_tool = false %}
{%- set content = m.content.split('</think>')[-1] %}{{ content }}{{ eos_token }}
{%- elif m.role == 'tool' %}{% set ns.after_tool = true %}<result>{{ m.content }}</result>
{%- endif %}{% endfor %}{% if add_generation_prompt and not ns.after_tool %}<|assistant|>{% endif %}"""


def deepseek(talk: Conversation) -> Pieces:
    messages = list(talk.messages)
    system = messages.pop(0).content if messages[0].role == "system" else ""
    tools = "".join(f"## {tool['function']['name']}: {dumped(tool['function'])}" for tool in talk.tools)
    yield f"<s>{system}{tools}", False
    before = ""
    for message in messages:
        if message.role == "user":
            yield f"<|user|>{message.content}", False
        elif message.role == "tool":
            yield f"<result>{message.content}</result>", False
        else:
            calls = [f"<call>{call.name}\n{dumped(call.arguments)}</call>" for call in message.calls]
            yield "" if before == "tool" else "<|assistant|>", False
            yield "".join(calls) + message.content + "</s>", True
        before = message.role


GLM = """[gMASK]{% if tools %}<|system|>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|observation|>
<tool_response>{{ m.content }}</tool_response>
{%- elif m.role == 'assistant' %}<|assistant|>
<think>{{ (m.reasoning_content or '') if loop.last else '' }}</think>
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}
{% for k, v in call.function.arguments.items() %}<key>{{ k }}</key><value>{{ v if v is string else v | tojson }}</value>
{% endfor %}</tool_call>{% endfor %}
{%- else %}<|{{ m.role }}|>
{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""


def glm(talk: Conversation) -> Pieces:
    yield "[gMASK]", False
    if talk.tools:
        yield "<|system|>\n" + "".join(dumped(tool) + "\n" for tool in talk.tools), False
    for number, message in enumerate(talk.messages):
        is_last = number == len(talk.messages) - 1
        if message.role == "tool":
            yield f"<|observation|>\n<tool_response>{message.content}</tool_response>", False
        elif message.role == "assistant":
            calls = ""
            for call in message.calls:
                arguments = [
                    f"<key>{key}</key><value>{value if isinstance(value, str) else dumped(value)}</value>\n"
                    for key, value in call.arguments.items()
                ]
                calls += f"<tool_call>{call.name}\n{''.join(arguments)}</tool_call>"
            yield "<|assistant|>\n", False
            thought = message.thought if is_last else ""
            yield f"<think>{thought}</think>\n{message.content}{calls}" + ("</s>" if is_last else ""), True
        else:
            yield f"<|{message.role}|>\n{message.content}", False


HARMONY = """<|start|>system<|message|>{% for tool in tools or [] %}{{ tool.function | tojson }};{% endfor %}<|end|>
{%- for m in messages %}{% if m.role == 'assistant' %}
{%- if m.thinking and (loop.last or m.tool_calls) %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{%- if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call a message') }}{% endif -%}
<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>
{{- m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif loop.last %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>
{%- else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}
{%- elif m.role == 'tool' %}
{{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' }}{{ m.content | tojson }}<|end|>
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""


def harmony(talk: Conversation) -> Pieces:
    tools = "".join(dumped(tool["function"]) + ";" for tool in talk.tools)
    yield f"<|start|>system<|message|>{tools}<|end|>", False
    for number, message in enumerate(talk.messages):
        is_last = number == len(talk.messages) - 1
        if message.role == "tool":
            yield (
                f"<|start|>functions to=assistant<|channel|>commentary<|message|>{dumped(message.content)}<|end|>",
                False,
            )
        elif message.role == "assistant":
            yield "<|start|>assistant", False
            if message.thought and (is_last or message.calls):
                yield f"<|channel|>analysis<|message|>{message.thought}<|end|><|start|>assistant", True
            if message.calls:
                (call,) = message.calls
                yield (
                    f" to=functions.{call.name}<|channel|>commentary json<|message|>{dumped(call.arguments)}<|call|>",
                    True,
                )
            else:
                yield f"<|channel|>final<|message|>{message.content}{'<|return|>' if is_last else '<|end|>'}", True
        else:
            yield f"<|start|>{message.role}<|message|>{message.content}<|end|>", False


@dataclass(frozen=True)
class Family:
    """A template, and the text that it writes with what is learned of it."""

    name: str
    template: str
    pieces: Callable[[Conversation], Pieces]
    is_parallel: bool = True


FAMILIES = (
    Family("hermes", HERMES, hermes),
    Family("mistral", MISTRAL, mistral),
    Family("llama", LLAMA, llama, is_parallel=False),
    Family("deepseek", DEEPSEEK, deepseek),
    Family("glm", GLM, glm),
    Family("harmony", HARMONY, harmony, is_parallel=False),
)
END_TOKENS = ("</s>", "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|start_header_id|>", "<|end|>", "<|return|>",
              "<|call|>", "<|start|>", "<|user|>", "<|assistant|>")  # fmt: skip


def expected(pieces: Pieces) -> tuple[str, list[bool]]:
    """The text, and for each of its characters whether it is learned."""
    listed = list(pieces)
    return "".join(text for text, _ in listed), [is_learned for text, is_learned in listed for _ in text]


def user(content: str) -> Message:
    return Message("user", content)
