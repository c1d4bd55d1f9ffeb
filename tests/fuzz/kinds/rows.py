"""Files of rows that are text, plain and compressed."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz.kinds.base import Kind, Mutate
from fuzz.mutate import any_of, in_json_line, of_bytes, of_json, of_text
from proven import OPTION
from tiny import WORDS, make_llama, write_pairs, write_rows

ROWS = 8
EXTREMES = (
    "1e400", "-1e400", "1e-400", "9" * 4000, "9" * 5000, "-0", "1E+999999999", "0.1e1", "NaN", "-Infinity",
    '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '{"\\ud800": 1}', '{"": {"": ""}}', "[" * 50 + "]" * 50,
    '{"a": ' * 2000 + "1" + "}" * 2000,
)  # fmt: skip
"""Values as JSON text that a value of Python cannot say."""


def make_jsonl(folder: Path) -> None:
    write_rows(folder / "rows.jsonl", rows=ROWS)


def make_array(folder: Path) -> None:
    lines = write_rows(folder / "rows.jsonl", rows=ROWS).read_text().splitlines()
    (folder / "rows.json").write_text("[" + ",\n".join(lines) + "]\n")


def make_delimited(name: str, delimiter: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        lines = write_rows(folder / "rows.jsonl", rows=ROWS).read_text().splitlines()
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, ["instruction", "input", "output"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)

    return make


def make_text(folder: Path) -> None:
    (folder / "rows.txt").write_text("".join(f"{' '.join(WORDS[at:])}\n" for at in range(ROWS)))


def make_packed(name: str, pack: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(pack(write_rows(folder / "rows.jsonl", rows=ROWS).read_bytes()))

    return make


def zst(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


def unzst(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdDecompressor().decompress(content)


def extreme(content: bytes, draw: Random) -> bytes:
    """A value of a line is one that a decoder takes in and nobody else does."""
    lines = content.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    row = json.loads(lines[at])
    key = draw.choice(list(row))
    row[draw.choice((key, "score"))] = "HERE"
    lines[at] = json.dumps(row).encode().replace(b'"HERE"', draw.choice(EXTREMES).encode()) + b"\n"
    return b"".join(lines)


def packed(mutate: Mutate, pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]) -> Mutate:
    """The mutation of what is packed."""
    return lambda content, draw: pack(mutate(unpack(content), draw))


def with_model(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def both(folder: Path) -> None:
        make(folder)
        make_llama(folder / "model")

    return both


def make_pairs(folder: Path) -> None:
    write_pairs(folder / "pairs.jsonl", rows=ROWS)
    make_llama(folder / "model")


OF_LINES = any_of(in_json_line, extreme, of_text, of_bytes)
STATS = ("data", "stats", "--data")
JSONL = Kind(name="rows as JSONL", make=make_jsonl, file="rows.jsonl", mutate=OF_LINES, command=(*STATS, "rows.jsonl"))
TOKENISED = Kind(
    name="rows as JSONL, in tokens",
    make=with_model(make_jsonl),
    file="rows.jsonl",
    mutate=OF_LINES,
    command=(*STATS, "rows.jsonl", "--model", "model"),
    share=0.5,
)
ARRAY = Kind(
    name="rows as a JSON array",
    make=make_array,
    file="rows.json",
    mutate=any_of(of_json, of_text, of_bytes),
    command=(*STATS, "rows.json"),
)
CSV = Kind(
    name="rows as CSV",
    make=make_delimited("rows.csv", ","),
    file="rows.csv",
    mutate=any_of(of_text, of_bytes),
    command=(*STATS, "rows.csv"),
)
TSV = Kind(
    name="rows as TSV",
    make=make_delimited("rows.tsv", "\t"),
    file="rows.tsv",
    mutate=any_of(of_text, of_bytes),
    command=(*STATS, "rows.tsv"),
    share=0.5,
)
TEXT = Kind(
    name="rows as text",
    make=make_text,
    file="rows.txt",
    mutate=any_of(of_text, of_bytes),
    command=(*STATS, "rows.txt"),
    share=0.5,
)
GZIP = Kind(
    name="rows as JSONL, gzip",
    make=make_packed("packed.jsonl.gz", gzip.compress),
    file="packed.jsonl.gz",
    mutate=any_of(of_bytes, of_bytes, packed(OF_LINES, gzip.compress, gzip.decompress)),
    command=(*STATS, "packed.jsonl.gz"),
)
ZSTD = Kind(
    name="rows as JSONL, zstd",
    make=make_packed("packed.jsonl.zst", zst),
    file="packed.jsonl.zst",
    mutate=any_of(of_bytes, of_bytes, packed(OF_LINES, zst, unzst)),
    command=(*STATS, "packed.jsonl.zst"),
)
PAIRS = Kind(
    name="pairs as JSONL, in tokens",
    make=make_pairs,
    file="pairs.jsonl",
    mutate=OF_LINES,
    command=("data", "show", "--data", "pairs.jsonl", "--model", "model", "--set", "objective=embedding"),
)
TRAINED = Kind(
    name="rows as JSONL, trained on",
    make=with_model(make_jsonl),
    file="rows.jsonl",
    mutate=OF_LINES,
    command=(
        "train", "--model", "model", "--data", "rows.jsonl", "--output", "run", "--fresh", OPTION,
        "--set", "train.max_steps=1", "--set", "data.max_length=64",
    ),
    share=0.3,
)  # fmt: skip
TEXTS = (JSONL, TOKENISED, ARRAY, CSV, TSV, TEXT, GZIP, ZSTD, PAIRS, TRAINED)
