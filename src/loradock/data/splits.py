"""Splits by name: which part of a data set a file belongs to, as the `datasets` library tells it, and which is read.

The words and what stands between them are `SPLIT_KEYWORDS` and `NON_WORDS_CHARS` of its `data_files.py`; folders count
before a file's own name, and `NAME-00000-of-00002` names a split of its own where one of the words stands in NAME.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePath

TRAIN = "train"
WORDS = {
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "dev", "val"),
    TRAIN: ("train", "training"),
}
"""The words of each split; of several in one name the first here counts, so that nothing held out is trained on."""
SEPARATORS = re.compile(r"[-._ 0-9]+")
SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")


def kind_of(name: str) -> str:
    """The split that a word of a name says, anywhere between separators: train, validation or test; else nothing."""
    words = set(SEPARATORS.split(name.lower()))
    return next((split for split, names in WORDS.items() if not words.isdisjoint(names)), "")


def split_of(file: PurePath) -> str:
    """The split of a file, by its path below the source; nothing where no word tells."""
    shard = SHARD.match(file.name)
    if shard and (kind := kind_of(shard[1])):
        return kind if shard[1].lower() in WORDS[kind] else shard[1]
    names = [*reversed(file.parent.parts), file.name]
    return next((kind for name in names if (kind := kind_of(name))), "")


def chosen(names: Collection[str], asked: str) -> list[str] | None:
    """Those of the splits that are read where `asked` (`train`, `train+validation`; "": any) is; None: it is not there.

    All of them where they are one set: one split, or nothing beside training rows that a word holds out.
    """
    if len(names) == 1 or all(not name or kind_of(name) == TRAIN for name in names):
        return [*names] if asked in ("", TRAIN, *names) else None
    found: list[str] = []
    for part in asked.split("+"):
        alike = [name for name in names if name and part in (name, kind_of(name))]
        exact = [name for name in alike if name == part] or alike
        if len(exact) != 1:
            return None
        found += exact
    return found
