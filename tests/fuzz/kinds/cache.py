"""The files of an entry of the prepared-data cache: one that is broken is made again, the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random

from fuzz.kinds.base import Kind
from fuzz.kinds.rows import STATS, make_jsonl, with_model
from fuzz.mutate import any_of, of_bytes, of_json, of_text

ENTRY = "cache/prepared/*"
COMMAND = (*STATS, "rows.jsonl", "--model", "model", "--json")


def is_made_again(good: Path, place: Path) -> list[str]:
    """Nothing where the entry is what it was."""
    found: list[str] = []
    (entry,) = good.glob(ENTRY)
    for file in sorted(entry.iterdir()):
        other = place / file.relative_to(good)
        content = json.loads if file.suffix == ".json" else bytes
        if not other.is_file() or content(other.read_bytes()) != content(file.read_bytes()):
            found.append(f"{file.name} of the entry differs")
    others = sorted(each.name for each in (place / entry.relative_to(good).parent).iterdir() if each.name != entry.name)
    return found + [f"{name} is left in the cache" for name in others]


def sealed_anew(content: bytes, draw: Random) -> bytes:
    """Values that another version might have written, under a digest that is right."""
    manifest = json.loads(content)
    manifest.pop("sha256")
    manifest = json.loads(of_json(json.dumps(manifest).encode(), draw))
    if isinstance(manifest, dict):
        manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps(manifest, indent=1).encode()


MANIFEST = Kind(
    name="cache: manifest.json",
    make=with_model(make_jsonl),
    file=f"{ENTRY}/manifest.json",
    mutate=any_of(of_json, of_text, of_bytes),
    command=COMMAND,
    check=is_made_again,
)
SEALED = Kind(
    name="cache: manifest.json, sealed anew",
    make=with_model(make_jsonl),
    file=f"{ENTRY}/manifest.json",
    mutate=sealed_anew,
    command=COMMAND,
)
ARRAYS = tuple(
    Kind(
        name=f"cache: {file}",
        make=with_model(make_jsonl),
        file=f"{ENTRY}/{file}",
        mutate=of_bytes,
        command=COMMAND,
        share=0.2,
        check=is_made_again,
    )
    for file in ("tokens.i32", "supervised.u8", "offsets.i64", "learned.i32", "lines.i64")
)
CACHE = (MANIFEST, SEALED, *ARRAYS)
