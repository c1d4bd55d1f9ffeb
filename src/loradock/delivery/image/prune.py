"""What `loradock prune` may take: the rules by which an entry goes or stays, and why. Nothing here touches anything.

Entries come from `prune_engine` (containers, images, build cache) and `prune_scratch`; both also take what was decided.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loradock.errors import UsageError
from loradock.text.amounts import duration_text, size_text

DEFAULT_AGE_SECONDS = 24 * 3600
AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
SIZES = {"": 1, "b": 1, **{f"{unit}b": 1000**n for n, unit in enumerate("kmgt", 1)}}
SIZES |= {f"{unit}ib": 1024**n for n, unit in enumerate("kmgt", 1)}
# Of two entries of one age the first kind goes first: a container before its image, an image before its cache.
ORDER = ("container", "tag", "image", "cache", "scratch")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing of ours that takes space.

    parts: the pieces of storage it holds, by id, in bytes; a piece is free once nothing holds it any more.
    needs: entries that have to go first, by id. kept: why it is never taken, decided where it was found.
    """

    kind: str
    id: str
    name: str
    last_used: float
    parts: Mapping[str, int] = field(default_factory=dict)
    needs: Collection[str] = ()
    is_newest: bool = False
    kept: str = ""

    @property
    def size_bytes(self) -> int:
        """All it holds, shared or not."""
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the user asked for. `held_parts`: storage that something of others holds; it is free in no case."""

    now: float
    older_than_seconds: float = DEFAULT_AGE_SECONDS
    keep_size_bytes: int = 0
    takes_newest: bool = False
    held_parts: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether an entry goes, why, and the bytes that its going frees once all before it have gone."""

    entry: Entry
    is_taken: bool
    why: str
    freed_bytes: int = 0


def decide(entries: Iterable[Entry], *, rules: Rules) -> list[Decision]:
    """What goes, oldest first; each with its reason. An entry goes only after all that needs it has gone."""
    order = _ordered(entries)
    removed: set[str] = set()
    decisions: list[Decision] = []
    everything = {entry.id for entry in order}
    left_bytes = _freed(order, everything, rules)
    freed_bytes = 0
    names = {entry.id: f"{entry.kind} {entry.name}" for entry in order}
    for entry in order:
        why = _why_kept(entry, rules, left_bytes=left_bytes - freed_bytes)
        if not why and (waiting := [need for need in entry.needs if need not in removed]):
            why = f"the {names.get(waiting[0], f'step {waiting[0][:12]} of another build')} stays"
        if why:
            decisions.append(Decision(entry=entry, is_taken=False, why=why))
            continue
        removed.add(entry.id)
        now_freed = _freed(order, removed, rules)
        age = f"last used {duration_text(rules.now - entry.last_used)} ago"
        decisions.append(Decision(entry=entry, is_taken=True, why=age, freed_bytes=now_freed - freed_bytes))
        freed_bytes = now_freed
    return decisions


def _why_kept(entry: Entry, rules: Rules, *, left_bytes: int) -> str:
    """Why an entry stays, whatever becomes of the others; empty where it may go."""
    age = rules.now - entry.last_used
    if entry.kept:
        return entry.kept
    if entry.is_newest and not rules.takes_newest:
        return "the newest image (--all takes it)"
    if age < rules.older_than_seconds:
        return f"newer than {duration_text(rules.older_than_seconds)} (--older-than)"
    if left_bytes <= rules.keep_size_bytes:
        return f"what is left fits in {size_text(rules.keep_size_bytes)} (--keep-size)"
    return ""


def _ordered(entries: Iterable[Entry]) -> list[Entry]:
    """Oldest first, where what an entry needs gone comes before it and lends it its age."""
    entries = list(entries)
    known = {entry.id: entry for entry in entries}
    ages: dict[str, tuple[float, int]] = {}

    def age(entry: Entry) -> tuple[float, int]:
        if entry.id not in ages:
            ages[entry.id] = (entry.last_used, 0)
            ages_of_needs = [age(known[need]) for need in entry.needs if need in known]
            depth = 1 + max((depth for _, depth in ages_of_needs), default=0)
            ages[entry.id] = (max([entry.last_used, *(when for when, _ in ages_of_needs)]), depth)
        return ages[entry.id]

    return sorted(entries, key=lambda e: (age(e)[0], ORDER.index(e.kind), age(e)[1], e.name))


def _freed(entries: Sequence[Entry], removed: set[str], rules: Rules) -> int:
    """Bytes that are free once `taken` has gone: pieces that nothing else holds."""
    held_parts = set(rules.held_parts).union(*(entry.parts for entry in entries if entry.id not in removed))
    free = {part: size for entry in entries if entry.id in removed for part, size in entry.parts.items()}
    return sum(size for part, size in free.items() if part not in held_parts)


def parse_age(text: str) -> float:
    """Seconds of `90m`, `24h`, `7d`, `2w`; of numbers without a unit only 0 is clear."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip().lower())
    if text.strip() == "0":
        return 0.0
    if match is None:
        raise UsageError(f"{text!r} is not an age", hint="a number and s, m, h, d or w: --older-than 7d")
    return float(match[1]) * AGES[match[2]]


def parse_size(text: str) -> int:
    """Bytes of `20GB`, `500MiB`, `0`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in SIZES:
        raise UsageError(f"{text!r} is not a size", hint="a number and MB, GB, MiB or GiB: --keep-size 20GB")
    return int(float(match[1]) * SIZES[match[2]])
