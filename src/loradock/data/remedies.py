"""Commands that make other rows of a file, by its kind: what a hint names for what no setting does."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from loradock.data.formats.fields import RowsChange
from loradock.data.readers import reader_of
from loradock.data.readers.base import Hinted, Mendable
from loradock.data.readers.compression import decompressed
from loradock.data.readers.delimited import CSV, TSV, separator
from loradock.files import regular

UNPACKED = {"": "cat", ".gz": "zcat", ".zst": "zstdcat"}
"""The command that prints a file, by how it is compressed."""
AS_TEXT = "dtype=str, keep_default_na=False"
LOADED = {
    "CSV": f"from_pandas(pandas.read_csv({{0!r}}, {{1}}{AS_TEXT}))",
    "TSV": f"from_pandas(pandas.read_csv({{0!r}}, {{1}}{AS_TEXT}))",
    "Parquet": "from_parquet({0!r})",
    "arrow": "from_file({0!r})",
}
"""How `datasets` opens a file that jq does not read, by the name of its reader; {1} is what separates its fields."""
USUAL = {CSV.name: ",", TSV.name: "\t"}
SETTING = re.compile(r"--set (?:'([^']+)'|([^\s,]+))")


def command_on(file: str, change: RowsChange, *, more: Sequence[str] = ()) -> str:
    """The command that writes the changed rows of a file, and of more of its kind, to a new one where it is typed."""
    reader, _ = reader_of(file) or (None, "")
    if reader is not None and reader.name in LOADED:
        made = f"{Path(file).name.partition('.')[0]}.new.jsonl"
        calls = (LOADED[reader.name].format(each, _separated(each)) for each in (file, *more))
        opened = ", ".join(f"datasets.Dataset.{call}" for call in calls)
        opened = f"datasets.concatenate_datasets([{opened}])" if more else opened
        method = change.method.replace("COLUMN", repr(change.column))
        return f"python -c {shlex.quote(f'import datasets, pandas; {opened}.{method}.to_json({made!r})')}"
    program = change.jq.replace("COLUMN", f"[{json.dumps(change.column, ensure_ascii=False)}]")
    if reader is not None and reader.name == "JSON":
        program = f'if type == "array" then .[] else . end | {program}'
    return _filtered(file, f"jq -c {shlex.quote(program)}", suffix=".jsonl", more=more)


def _separated(file: str) -> str:
    """The argument of `pandas.read_csv` for what separates a file's fields; "" for a comma, and where nothing does."""
    reader, compression = reader_of(file) or (None, "")
    usual = USUAL.get(reader.name if reader else "")
    if usual is None:
        return ""
    with (
        regular.opened(Path(file)) as packed,
        closing(decompressed(packed, compression) if compression else packed) as plain,
    ):
        sign = separator(plain, usual)
    return "" if sign == "," else f"sep={sign!r}, "


def mending(file: str, problem: str | None) -> str | None:
    """The command that makes a new file of one that cannot be read, or the option that reads it; None: neither."""
    if isinstance(problem, Hinted):
        return problem.hint
    return _filtered(file, problem.filter, suffix=problem.suffix) if isinstance(problem, Mendable) else None


def in_the_file(hint: str | None) -> RowsChange | None:
    """The change of rows that does what the first settings of a source do that a hint asks for; None where none can."""
    renamed: dict[str, str] = {}
    left: list[str] = []
    for quoted, plain in SETTING.findall((hint or "").partition(", or ")[0]):
        key, _, value = (quoted or plain).partition("=")
        match key.split("."):
            case ["data", "sources", _, "fields", field] if value != "COLUMN":
                renamed[value] = field
            case ["data", "sources", _, "ignore"]:
                left += value.strip("[]").split(", ")
            case _:
                return None
    if not renamed and not left:
        return None
    names, out = (json.dumps(each, ensure_ascii=False) for each in (renamed, left))
    program = f"with_entries(select(.key | IN({out}[]) | not) | .key |= ({names}[.] // .))"
    return RowsChange(column="", jq=program, method=f"rename_columns({renamed}).remove_columns({left})")


def _filtered(file: str, filter: str, *, suffix: str, more: Sequence[str] = ()) -> str:
    _, compression = reader_of(file) or (None, "")
    end = suffix or Path(file[: len(file) - len(compression)]).suffix
    made = f"{Path(file).name.partition('.')[0]}.new{end}"
    return f"{UNPACKED[compression]} {shlex.join((file, *more))} | {filter} > {shlex.quote(made)}"
