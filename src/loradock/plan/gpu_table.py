"""Named cards: what is published of each, in `gpus.json`, so that plans are made and speeds judged without one.

To add a card: a row in `gpus.json` with the source of its figures; `about` there says what each means.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

from loradock.errors import UsageError
from loradock.facts import Gpu

# In a name: a slice of a card, or another one than its sister without the word.
VARIANT = re.compile(r"mig|grid|laptop|mobile|max|ti|super|d|nvl|\d+[abcq]")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card's published figures.

    `name` is what NVML calls it. `tflops`: dense tensor TFLOP/s of 16-bit inputs with 32-bit sums; `memory`, `pcie`:
    GB/s, one direction; `memory_mib`: as nvidia-smi shows it. `sustained`: the fraction of `tflops` that a long run of
    large products is assumed to reach. `floors`: what a healthy card passes of each figure, by the name of the check.
    """

    key: str
    name: str
    memory_mib: int
    capability: tuple[int, int]
    tflops: float
    memory: float
    pcie: float
    sustained: float
    floors: dict[str, float]
    source: str
    called: tuple[str, ...]
    words: tuple[str, ...]

    def as_gpu(self) -> Gpu:
        """The card as facts of a machine have it."""
        return Gpu(name=self.name, memory_bytes=self.memory_mib << 20, capability=self.capability)


@functools.cache
def table() -> tuple[Card, ...]:
    """All cards. Where one name fits several, the first is meant."""
    content = json.loads(resources.files("loradock.plan").joinpath("gpus.json").read_text(encoding="utf-8"))
    return tuple(_card(row, content) for row in content["cards"])


def named(name: str) -> Card:
    """The card of this short name: a10, h200, 2080ti, a100-40; or the maker's: RTX 4090, NVIDIA_A10.

    UsageError, with what is near, for any other.
    """
    cards = {bare(word): card for card in reversed(table()) for word in (card.key, card.name, *card.called)}
    wanted = bare(name)
    if wanted in cards:
        return cards[wanted]
    raise UsageError(f"there is no card called {name!r} in the table", hint=_near(wanted))


def bare(name: str) -> str:
    """A card's name without its maker, its family and what stands between the words."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"nvidia|tesla|geforce|rtx", "", name.lower()))


def _near(wanted: str) -> str:
    """Those that begin so, the one that is spelt alike, or all."""
    keys = sorted(card.key for card in table())
    begin = [key for key in keys if wanted and bare(key).startswith(wanted)]
    if len(begin) > 1:
        return f"which one: {', '.join(begin)}?"
    spelt = {bare(key): key for key in keys}
    near = difflib.get_close_matches(wanted, spelt, n=1)
    return (
        f"did you mean {(begin or [spelt[each] for each in near])[0]}?"
        if begin or near
        else f"one of {', '.join(keys)}"
    )


def known_as(name: str) -> Card | None:
    """The card of this name, as NVML writes it; None where it is not in the table.

    A part of a card (MIG, vGPU) and a variant (Laptop, Ti, D) have other figures than the card whose name they carry.
    """
    words = set(re.split(r"[\s-]+", name.lower()))
    for card in table():
        wanted = {word.lower() for word in card.words}
        if wanted <= words and not any(VARIANT.fullmatch(word) for word in words - wanted):
            return card
    return None


def _card(row: dict[str, Any], content: dict[str, Any]) -> Card:
    major, minor = row["capability"]
    return Card(
        key=row["key"],
        name=row["name"],
        memory_mib=row["memory_mib"],
        capability=(major, minor),
        tflops=row["tflops"],
        memory=row["memory"],
        pcie=row["pcie"],
        sustained=row.get("sustained", content["sustained"]),
        floors={**content["floors"], "gemm": row.get("gemm_floor", content["floors"]["gemm"])},
        source=row["source"],
        called=tuple(row.get("called", ())),
        words=tuple(row["words"]),
    )
