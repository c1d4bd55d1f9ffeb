"""Removes from an environment what the image does without: `trim.py VENV RULES`. Run while the layer is still open.

A trimmed file's line leaves its RECORD too, so that RECORD stays the truth about what is installed. Prints the files
and bytes of each rule.
"""

from __future__ import annotations

import csv
import fnmatch
import sys
from collections.abc import Iterator
from pathlib import Path


def rules(text: str) -> list[tuple[str, str]]:
    """(glob, reason) for each line of trim.txt."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(glob.strip(), reason.strip()) for glob, _, reason in (line.partition("#") for line in lines)]


def trimmed(record: Path, wanted: list[tuple[str, str]]) -> Iterator[tuple[str, int]]:
    """Remove what the rules name from one package and its RECORD; yields (glob, bytes) for each file removed."""
    site = record.parent.parent
    with record.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    kept: list[list[str]] = []
    for row in rows:
        glob = next((glob for glob, _ in wanted if fnmatch.fnmatchcase(row[0], glob)), None)
        path = site / row[0]
        if glob is None or not path.is_file():
            kept.append(row)
            continue
        yield glob, path.stat().st_size
        path.unlink()
    if len(kept) < len(rows):
        with record.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows(kept)


def main(venv: Path, rules_file: Path) -> None:
    """Trim every package of the environment."""
    wanted = rules(rules_file.read_text(encoding="utf-8"))
    totals = {glob: [0, 0] for glob, _ in wanted}
    for record in sorted(venv.glob("lib/python3.*/site-packages/*.dist-info/RECORD")):
        for glob, size_bytes in trimmed(record, wanted):
            totals[glob][0] += 1
            totals[glob][1] += size_bytes
    for glob, reason in wanted:
        count, size_bytes = totals[glob]
        print(f"trimmed {size_bytes / 1e6:8.1f} MB in {count:5d} files: {glob}  ({reason})")
    print(f"trimmed {sum(size for _, size in totals.values()) / 1e6:8.1f} MB in all")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
