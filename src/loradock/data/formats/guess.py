"""What to say of columns that a format does not take as they are: the nearest format, and the option for every field.

Names that other data sets use for a field are only ever proposed, never taken.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from loradock.data.formats.base import MOST_COMPARED, Format, RowError, listed

ALIASES: dict[str, tuple[str, ...]] = {
    "instruction": ("question", "query", "task", "prompt"),
    "input": ("context", "inputs"),
    "output": ("response", "answer", "target", "completion"),
    "system": ("system_prompt", "system_message"),
    "history": ("conversation_history", "chat_history"),
    "messages": ("chat", "dialog", "dialogue", "turns"),
    "conversations": ("conversation",),
    "prompt": ("question", "query", "instruction"),
    "completion": ("response", "answer", "target", "output"),
    "text": ("content", "body", "document", "story"),
}
"""Column names that other data sets use for a field, likeliest first."""


class Undetected(RowError):
    """A row that fits no format; `hint` is what to type."""


def undetected(
    formats: Sequence[Format], columns: Collection[str], *, mapping: Mapping[str, str], index: int
) -> Undetected:
    """The error for a row with these columns, under this mapping, in source number `index`."""
    known = "; ".join(f"{format.name} needs {', '.join(format.required)}" for format in formats)
    mapped = ", ".join(f"{field} = {column}" for field, column in mapping.items())
    what = f"columns {listed(columns) or '(none)'}{f' (with fields {mapped})' if mapped else ''} fit no format: {known}"
    nearest = min(formats, key=lambda format: _distance(format, guess(format, columns, mapping), columns))
    return Undetected(
        what, hint=f"nearest is {nearest.name}: {options(nearest, columns, mapping=mapping, index=index)}"
    )


def options(format: Format, columns: Collection[str], *, mapping: Mapping[str, str], index: int) -> str:
    """The `--set` of each field whose column has another name, COLUMN where none comes near; empty where all fits."""
    sets = [
        f"--set data.sources.{index}.fields.{field}={column or 'COLUMN'}"
        for field, column in guess(format, columns, mapping).items()
        if column != field and mapping.get(field) != column
    ]
    return " ".join(sets)


def guess(format: Format, columns: Collection[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """The likeliest column for each field of a format: of a required one also a near name, or nothing ("").

    Optional fields without a column are left out.
    """
    found: dict[str, str] = {}
    plain = {plainly(column): column for column in columns}
    for field in (*format.required, *format.optional):
        if mapping.get(field) in columns:
            found[field] = mapping[field]
        elif field in columns:
            found[field] = field
        elif candidates := [plain[name] for name in (field, *ALIASES.get(field, ())) if name in plain]:
            found[field] = next((each for each in candidates if each not in found.values()), candidates[0])
        elif field in format.required:
            near = difflib.get_close_matches(field, list(islice(plain, MOST_COMPARED)), n=1, cutoff=0.75)
            found[field] = plain[near[0]] if near else ""
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
