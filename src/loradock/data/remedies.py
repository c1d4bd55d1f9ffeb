"""Commands that make other rows of a file, by its kind: what a hint names for what no setting does."""

from __future__ import annotations

import shlex
from pathlib import Path

from loradock.data.formats.base import RowsChange
from loradock.data.readers import reader_of

UNPACKED = {"": "cat", ".gz": "zcat", ".zst": "zstdcat"}
"""The command that prints a file, by how it is compressed."""
AS_TEXT = "dtype=str, keep_default_na=False"
LOADED = {
    "CSV": f"from_pandas(pandas.read_csv({{0!r}}, {AS_TEXT}))",
    "TSV": f"from_pandas(pandas.read_csv({{0!r}}, sep='\\t', {AS_TEXT}))",
    "Parquet": "from_parquet({0!r})",
    "arrow": "from_file({0!r})",
}
"""How `datasets` opens a file that jq does not read, by the name of its reader."""


def command_on(file: str, change: RowsChange) -> str:
    """The command that writes the changed rows of a file to a new one, in the working directory."""
    reader, compression = reader_of(file) or (None, "")
    made = f"{Path(file).name.partition('.')[0]}.new.jsonl"
    if reader is not None and reader.name in LOADED:
        opened = f"datasets.Dataset.{LOADED[reader.name].format(file)}"
        method = change.method.replace("COLUMN", repr(change.column))
        return f"python -c {shlex.quote(f'import datasets, pandas; {opened}.{method}.to_json({made!r})')}"
    program = change.jq.replace("COLUMN", f'["{change.column}"]')
    if reader is not None and reader.name == "JSON":
        program = f'if type == "array" then .[] else . end | {program}'
    return f"{UNPACKED[compression]} {shlex.quote(file)} | jq -c {shlex.quote(program)} > {shlex.quote(made)}"


def one_document(file: str) -> str:
    """The command that makes one row of a text file."""
    _, compression = reader_of(file) or (None, "")
    made = f"{Path(file).name.partition('.')[0]}.new.jsonl"
    return f"{UNPACKED[compression]} {shlex.quote(file)} | jq -Rsc '{{text: .}}' > {shlex.quote(made)}"
