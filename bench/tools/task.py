"""Made-up functions, and questions that are to be answered with calls of them: the same rows for the same seed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

CITIES = ("Oslo", "Lima", "Kyoto", "Turku", "Porto", "Quito", "Gdańsk", "Accra", "Hanoi", "Bergen", "Cuzco", "Tromsø")
NAMES = ("Ada", "Boris", "Chen", "Dora", "Emil", "Fatima", "Goran", "Hilda", "Igor", "Jun", "Kofi", "Lena")
THINGS = ("lamp", "kettle", "door", "fan", "heater", "radio", "blind", "pump", "oven", "gate", "bell", "screen")
HELD_OUT = 4
"""Of each kind of values so many are asked for in held-out rows alone."""
FUNCTIONS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "rain_today": ("Rain of a city today", {"city": "city"}, ("Does it rain in {city} today?", "Rain in {city}?")),
    "tide_at": ("Time of high tide", {"port": "city"}, ("When is high tide in {port}?", "High tide at {port}?")),
    "switch": ("Switch a device on or off", {"device": "thing", "is_on": "bool"}, ("Turn the {device} {is_on}.",)),
    "set_level": ("Set a device to a level", {"device": "thing", "level": "int"}, ("Set the {device} to {level}.",)),
    "call_person": ("Call somebody", {"name": "name"}, ("Call {name}.", "Please ring {name}.")),
    "send_note": ("Send a note", {"to": "name", "about": "thing"}, ("Write to {to} about the {about}.",)),
    "train_from": ("Next train", {"start": "city", "end": "city"}, ("Next train from {start} to {end}?",)),
    "book_table": ("Book a table", {"name": "name", "guests": "int"}, ("A table for {guests} under {name}, please.",)),
    "timer": ("Start a timer", {"minutes": "int"}, ("Wake me in {minutes} minutes.", "Timer: {minutes} minutes.")),
    "price_of": ("Price of a thing", {"item": "thing"}, ("What does a {item} cost?", "Price of a {item}?")),
    "repair": ("Order a repair", {"item": "thing", "city": "city"}, ("Have the {item} in {city} repaired.",)),
    "birthday": ("Birthday of a person", {"name": "name"}, ("When is {name}'s birthday?",)),
}
KINDS = {"city": "string", "thing": "string", "name": "string", "int": "integer", "bool": "boolean"}


def write(folder: Path, *, train: int, held_out: int, seed: int = 0) -> None:
    """rows.jsonl and held_out.jsonl in OpenAI's form; held-out ones also ask for values that no other row has."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    for name, count, is_held_out in (("rows", train, False), ("held_out", held_out, True)):
        lines = [json.dumps(row(draw, is_held_out=is_held_out), ensure_ascii=False) for _ in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def row(draw: random.Random, *, is_held_out: bool) -> dict[str, Any]:
    """A question, three definitions, and the call; in a fifth of the rows two questions and two calls."""
    offered = draw.sample([*FUNCTIONS], 3)
    asked = draw.sample(offered, 2 if draw.random() < 0.2 else 1)
    questions: list[str] = []
    calls: list[dict[str, Any]] = []
    for name in asked:
        _, parameters, texts = FUNCTIONS[name]
        values = {key: value(draw, kind, is_held_out=is_held_out) for key, kind in parameters.items()}
        said = {key: ("off", "on")[each] if isinstance(each, bool) else each for key, each in values.items()}
        questions.append(draw.choice(texts).format(**said))
        calls.append({"type": "function", "function": {"name": name, "arguments": values}})
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    return {
        "tools": list(map(defined, offered)),
        "messages": [{"role": "user", "content": " ".join(questions)}, answer],
    }


def value(draw: random.Random, kind: str, *, is_held_out: bool) -> str | int | bool:
    """A value; of names, cities and things the last HELD_OUT are for held-out rows."""
    if kind == "int":
        return draw.randint(2, 90)
    if kind == "bool":
        return draw.random() < 0.5
    values = {"city": CITIES, "thing": THINGS, "name": NAMES}[kind]
    return draw.choice(values if is_held_out else values[:-HELD_OUT])


def defined(name: str) -> dict[str, Any]:
    """The definition of a function, in OpenAI's form."""
    description, parameters, _ = FUNCTIONS[name]
    properties = {key: {"type": KINDS[kind]} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": [*parameters]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
