"""What to say of columns that a format does not take as they are: the nearest format, and the option for every field.

Names that other data sets use for a field are only ever proposed, never taken.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from loradock.catalog.samples import SampleKind
from loradock.data.formats.base import Format, convert_row
from loradock.data.formats.fields import Misfit, Row, RowError, is_list, is_object, listed
from loradock.text.suggest import nearest

ALIASES: dict[str, tuple[str, ...]] = {
    "instruction": ("question", "query", "task", "prompt", "problem", "request", "user", "human", "input", "inputs"),
    "input": ("context", "inputs"),
    "output": ("response", "solution", "answer", "target", "completion", "reply", "assistant", "gpt", "bot"),
    "system": ("system_prompt", "system_message"),
    "history": ("conversation_history", "chat_history"),
    "messages": ("chat", "dialog", "dialogue", "turns"),
    "conversations": ("conversation",),
    "prompt": ("question", "query", "instruction"),
    "completion": ("response", "answer", "target", "output"),
    "text": ("content", "body", "document", "story"),
    "anchor": ("query", "question", "sentence1"),
    "positive": ("pos", "answer", "passage", "document", "sentence2"),
    "negative": ("neg",),
}
"""Column names that other data sets use for a field, likeliest first."""
TEXTS_OF_A_PAIR = 2


class Undetected(RowError):
    """A row that fits no format; `hint` is what to type."""


def undetected(
    formats: Sequence[Format], row: Row, *, mapping: Mapping[str, str], index: int, kinds: Collection[SampleKind] = ()
) -> Undetected:
    """The error for a row of no format, under this mapping, in source number `index`.

    What is proposed was tried on the row: the nearest of the formats that can be made of it, of those of `kinds` where
    there are such, else what its values are.
    """
    known = "; ".join(f"{format.name} needs {', '.join(format.required)}" for format in formats)
    mapped = ", ".join(f"{field} = {column}" for field, column in mapping.items())
    what = f"columns {listed(row) or '(none)'}{f' (with fields {mapped})' if mapped else ''} fit no format: {known}"
    possible = [format for format in formats if can_be(format, guess(format, row, mapping), row)]
    tried = [format for format in possible if format.kind in kinds] or possible
    if tried:
        nearest = min(tried, key=lambda format: _distance(format, guess(format, row, mapping), row))
        hint = f"nearest is {nearest.name}: {options(nearest, row, mapping=mapping, index=index)}"
    else:
        hint = by_values(row, index=index)
    return Undetected(what, hint=hint)


def by_values(row: Row, *, index: int) -> str:
    """What to type for columns whose names tell nothing, by what they hold."""
    for name, value in row.items():
        if is_list(value) and value and all(is_object(turn) for turn in value):
            if all("role" in turn for turn in value):
                return f"nearest is messages: {setting(index, 'messages', name)}"
            if all("from" in turn for turn in value):
                return f"nearest is sharegpt: {setting(index, 'conversations', name)}"
        if is_list(value) and value and len(value) % 2 == 0 and all(isinstance(part, str) for part in value):
            return f"nearest is text, prompts and answers by turns: {setting(index, 'text', name)}"
    texts = [name for name, value in row.items() if isinstance(value, str) and value.strip()]
    if len(texts) == 1:
        return f"nearest is text: {setting(index, 'text', texts[0])}"
    if len(texts) == TEXTS_OF_A_PAIR:
        asks, answers = texts
        both = f"{setting(index, 'instruction', asks)} {setting(index, 'output', answers)}"
        return f"if {asks} asks and {answers} answers: {both}"
    if texts:
        which = f"the columns of text that ask and answer ({listed(texts)})"
        return f"name {which}: {setting(index, 'instruction', 'COLUMN')} {setting(index, 'output', 'COLUMN')}"
    return "no column holds text or turns: docs/data.md shows a row of each format"


def can_be(format: Format, found: Mapping[str, str], row: Row) -> bool:
    """Whether the row is one of the format where its fields are these columns."""
    if not all(found[field] for field in format.required):
        return False
    try:
        convert_row(format, {field: column for field, column in found.items() if column != field}, row)
    except Misfit:
        return False
    except RowError:  # it is of the format, and bad in itself
        return True
    return True


def options(format: Format, columns: Collection[str], *, mapping: Mapping[str, str], index: int) -> str:
    """The `--set` of each field whose column has another name, COLUMN where none comes near; empty where all fits."""
    sets = [
        setting(index, field, column or "COLUMN")
        for field, column in guess(format, columns, mapping).items()
        if column != field and mapping.get(field) != column
    ]
    return " ".join(sets)


def setting(index: int, field: str, column: str) -> str:
    """The option that maps a column of source number `index`, as a shell takes it."""
    return f"--set {shlex.quote(f'data.sources.{index}.fields.{field}={column}')}"


def guess(format: Format, columns: Collection[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """The likeliest column for each field of a format: of a required one also a near name, or nothing ("").

    Optional fields without a column are left out.
    """
    found = {field: mapping[field] for field in format.fields if mapping.get(field) in columns}
    found |= {field: field for field in format.required if field in columns and field not in found}
    plain = {plainly(column): column for column in columns}
    for field in (*format.required, *format.optional):
        if field in found:
            continue
        if field in columns and field not in found.values():
            found[field] = field
        elif candidates := [
            plain[name]
            for name in (field, *ALIASES.get(field, ()))
            if name in plain and plain[name] not in found.values()
        ]:
            found[field] = candidates[0]
        elif field in format.required:
            near = nearest(field, (name for name in plain if plain[name] not in found.values()), alike=0.75)
            found[field] = plain[near] if near else ""
    return found


def meant_for(format: Format, mapping: Mapping[str, str]) -> dict[str, str]:
    """Names of columns, written plainly, that hold an optional field which the mapping does not give -> the field."""
    fields = [field for field in format.optional if field not in mapping]
    return {name: field for field in fields for name in (field, *ALIASES.get(field, ()))}


def plainly(column: str) -> str:
    """A column's name in lower case, words joined by underscores."""
    return column.strip().lower().replace(" ", "_").replace("-", "_")


def _distance(format: Format, found: Mapping[str, str], columns: Collection[str]) -> float:
    """How far a format is from fitting: a required field without a column counts 1, one under another name 0.1.

    That is as a share of the required fields; a column that some format has an optional field for, and this one has
    not, counts 0.1 too.
    """
    open_fields = sum(1 for field in format.required if not found[field])
    renamed = sum(1 for field in format.required if found[field] not in ("", field))
    lost = sum(1 for column in columns if plainly(column) in MEANINGFUL and column not in found.values())
    return (open_fields + renamed / 10) / len(format.required) + lost / 10


MEANINGFUL = {name for field in ("input", "system", "history") for name in (field, *ALIASES[field])}
"""Names of columns that belong to what the model sees, where a format has the field."""
