"""Made-up rows in each form that people have them in: its file, and what has to be set beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COUNT = 10
CITIES = ("Oslo", "Rome", "Bonn", "Nice", "Lima", "Kyiv", "Bern", "Cork", "Graz", "Turin")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "rain", "description": "Rain of a day in mm.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": TOOL}]
SYSTEM = "You measure rain."


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form: `row(city)` is a row, a text for a text file. `learned`: a text that is learned, `{city}` in it.

    `template`: of those that TRL ships, where the base's own writes less than the row holds. `settings`: beside it.
    """

    name: str
    row: Callable[[str], Mapping[str, Any] | str]
    learned: str
    suffix: str = ".jsonl"
    template: str = ""
    settings: tuple[str, ...] = field(default=())

    def write(self, folder: Path) -> Path:
        """A file of ten rows."""
        file = folder / f"{self.name}{self.suffix}"
        rows = [self.row(city) for city in CITIES]
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file


def turn(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    """A turn as OpenAI writes it."""
    return {"role": role, "content": content, **more}


def said(speaker: str, value: str) -> dict[str, str]:
    """A turn as ShareGPT writes it."""
    return {"from": speaker, "value": value}


def question(city: str) -> str:
    """What is asked in each of them."""
    return f"How much rain fell in {city}?"


def answer(city: str) -> str:
    """What is answered."""
    return f"{len(city)} mm fell in {city}."


def call(city: str) -> dict[str, Any]:
    """The call that a question makes."""
    return {"name": "rain", "arguments": {"city": city}}


def openai(city: str) -> dict[str, Any]:
    """Arguments as text, as the API gives them."""
    function = {"name": "rain", "arguments": json.dumps({"city": city})}
    calls = [{"id": "call00001", "type": "function", "function": function}]
    result = turn("tool", f"{len(city)} mm", tool_call_id="call00001", name="rain")
    asked = turn("assistant", None, tool_calls=calls)
    return {"messages": [turn("user", question(city)), asked, result, turn("assistant", answer(city))], "tools": TOOLS}


def sharegpt(city: str) -> dict[str, Any]:
    """Tools as JSON text."""
    turns = [said("human", question(city)), said("function_call", json.dumps(call(city)))]
    return {
        "conversations": [*turns, said("observation", f"{len(city)} mm"), said("gpt", answer(city))],
        "tools": json.dumps([TOOL]),
    }


def hermes(city: str) -> dict[str, Any]:
    """Calls in tags at the end of an answer."""
    calling = f"I look it up.\n<tool_call>\n{json.dumps(call(city))}\n</tool_call>"
    result = f"<tool_response>\n{len(city)} mm\n</tool_response>"
    turns = [said("human", question(city)), said("gpt", calling), said("tool", result), said("gpt", answer(city))]
    return {"conversations": turns, "tools": json.dumps(TOOLS)}


def toolace(city: str) -> dict[str, Any]:
    """Definitions in the system text, calls as Python writes them."""
    turns = [said("user", question(city)), said("assistant", f'[rain(city="{city}")]')]
    return {"system": f"{SYSTEM} Functions: {json.dumps([TOOL])}", "conversations": turns}


def xlam(city: str) -> dict[str, Any]:
    """A question and the calls that answer it, all as text."""
    return {"query": question(city), "tools": json.dumps([TOOL]), "answers": json.dumps([call(city)])}


def swift(city: str) -> dict[str, Any]:
    """A call is a turn of its own."""
    turns = [turn("user", question(city)), turn("tool_call", json.dumps(call(city)))]
    return {
        "messages": [*turns, turn("tool_response", f"{len(city)} mm"), turn("assistant", answer(city))],
        "tools": json.dumps(TOOLS),
    }


def thinking(city: str) -> dict[str, Any]:
    """A thought beside the answer."""
    thought = f"{city} has {len(city)} letters."
    return {"messages": [turn("user", question(city)), turn("assistant", answer(city), reasoning_content=thought)]}


def weighted(city: str) -> dict[str, Any]:
    """The first answer is context."""
    first = [turn("user", "Hello"), turn("assistant", "Good day.", weight=0)]
    return {"messages": [*first, turn("user", question(city)), turn("assistant", answer(city), weight=1)]}


def turns_as_prompt(city: str) -> dict[str, Any]:
    """Prompt and completion as lists of turns."""
    return {"prompt": [turn("user", question(city))], "completion": [turn("assistant", answer(city))]}


def parts(city: str) -> dict[str, Any]:
    """Content as a list of parts."""
    asked = [{"type": "text", "text": question(city)}]
    return {"messages": [turn("system", SYSTEM), {"role": "user", "content": asked}, turn("assistant", answer(city))]}


CALL, QWEN = '{{"name": "rain", "arguments": {{"city": "{city}"}}}}', "qwen2_5"
FORMS = (
    Form(name="openai-tools", row=openai, learned=CALL, template=QWEN),
    Form(name="openai-tools-as-text", row=openai, learned=CALL, settings=("data.tools=text",)),
    Form(name="sharegpt-tools", row=sharegpt, learned=CALL, template=QWEN),
    Form(name="hermes", row=hermes, learned=CALL, template=QWEN),
    Form(name="toolace", row=toolace, learned='[rain(city="{city}")]'),
    Form(name="xlam", row=xlam, learned=CALL, template=QWEN, settings=("data.sources.0.format=xlam",)),
    Form(name="ms-swift-tools", row=swift, learned=CALL, template=QWEN),
    Form(name="reasoning", row=thinking, learned="{city} has ", template="qwen3"),
    Form(name="weights", row=weighted, learned="fell in {city}."),
    Form(name="parts", row=parts, learned="fell in {city}."),
    Form(name="alpaca", row=lambda city: {"instruction": question(city), "output": answer(city)}, learned="in {city}."),
    Form(
        name="sharegpt",
        row=lambda city: {"conversations": [said("human", question(city)), said("gpt", answer(city))]},
        learned="fell in {city}.",
    ),
    Form(
        name="prompt-completion",
        row=lambda city: {"prompt": f"{question(city)} ", "completion": answer(city)},
        learned="fell in {city}.",
    ),
    Form(name="prompt-completion-turns", row=turns_as_prompt, learned="fell in {city}."),
    Form(name="text-rows", row=lambda city: {"text": answer(city)}, learned="fell in {city}."),
    Form(name="text-file", row=answer, learned="fell in {city}.", suffix=".txt", settings=("data.text=line",)),
    Form(
        name="preference",
        row=lambda city: {"prompt": question(city), "chosen": answer(city), "rejected": "Who knows."},
        learned="fell in {city}.",
        settings=("objective=preference",),
    ),
)
