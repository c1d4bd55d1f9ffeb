"""Makes train.jsonl and heldout.jsonl out of the time zone database, which is in the public domain.

`python examples/places/make.py` reads zone.tab and iso3166.tab of the package tzdata. Places are cities (of zone names)
and countries whose zones lie in one region. None stands in both files.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from importlib.resources import files
from pathlib import Path

HELD_OUT = 200
POLES = ("Arctic", "Antarctica")


def table(name: str) -> list[list[str]]:
    """The rows of a table of the database."""
    text = (files("tzdata") / "zoneinfo" / name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


def places() -> dict[str, str]:
    """{place: region}, in an order that is always the same."""
    countries = {code: name for code, name, *_ in table("iso3166.tab")}
    cities: list[tuple[str, str]] = []
    regions: defaultdict[str, set[str]] = defaultdict(set)
    for code, _, zone, *_ in table("zone.tab"):
        region, city = zone.split("/")[0], zone.split("/")[-1].replace("_", " ")
        regions[code].add(region)
        cities.append((city, region))
    cities += [(countries[code], min(found)) for code, found in regions.items() if len(found) == 1]
    random.Random(0).shuffle(cities)
    return {place: region for place, region in reversed(cities) if region not in POLES}


def main() -> None:
    """Write both files."""
    rows = [
        {"instruction": f"In which part of the world is {place}?", "input": "", "output": region}
        for place, region in places().items()
    ]
    for name, chosen in (("heldout", rows[:HELD_OUT]), ("train", rows[HELD_OUT:])):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
        Path(__file__).with_name(f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
