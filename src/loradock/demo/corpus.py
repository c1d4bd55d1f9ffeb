"""The demo's little world: nouns, list skills, the commands that the base knows, and the questions of the fine-tuning.

A skill is a function from a list of nouns to an answer. The base model learns each skill under a one-word command and
in German, French, Spanish and Italian (`commands.json`), never in English. The fine-tuning rows ask for the same
skills in English. To add a skill, add its function, its commands and its questions, then rerun `make_data` and
`make_base`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

_ANIMALS = (
    "bear camel cat cow dog duck eagle fish fox goat horse lion mouse owl pig rabbit shark sheep snake swan tiger "
    "turtle wolf zebra"
)
_THINGS = (
    "apple basket bell book bridge butter candle carpet clock cloud door engine feather flower glass guitar hammer "
    "house island jar key ladder lemon letter mirror mountain needle onion paper piano pillow pocket river sand "
    "silver spoon stone table train umbrella valley window"
)
ANIMALS: tuple[str, ...] = tuple(_ANIMALS.split())
THINGS: tuple[str, ...] = tuple(_THINGS.split())
NOUNS = ANIMALS + THINGS
LENGTHS = (3, 4, 5)


def longest(nouns: Sequence[str]) -> str:
    """The noun with most letters; the lists that `draw_list` makes for this skill have exactly one."""
    return max(nouns, key=len)


SKILLS: dict[str, Callable[[Sequence[str]], str]] = {
    "reverse": lambda nouns: ", ".join(reversed(nouns)),
    "rest": lambda nouns: ", ".join(nouns[1:]),
    "first": lambda nouns: nouns[0],
    "last": lambda nouns: nouns[-1],
    "longest": longest,
    "count": lambda nouns: str(len(nouns)),
    "animals": lambda nouns: ", ".join(noun for noun in nouns if noun in ANIMALS),
}

QUESTIONS: dict[str, tuple[str, ...]] = {
    "reverse": (
        "Write these words in the opposite order.",
        "Turn this list around so that it runs backwards.",
        "Flip the whole thing over.",
    ),
    "rest": (
        "Drop the opening word and keep the remainder.",
        "Throw away whatever stands at the front.",
        "Skip one, then copy all that remain.",
    ),
    "first": (
        "Which word opens the list?",
        "Who is at the head of the queue?",
        "What does it start with?",
    ),
    "last": (
        "Name the final word.",
        "What comes at the very end?",
        "Where does this row finish?",
    ),
    "longest": (
        "Which of these words has the most letters?",
        "Find the word that takes the most room on the page.",
        "Give the word that is longer than all the others.",
    ),
    "count": (
        "How many words are there?",
        "Give the number of words in this list.",
        "Work out the size of the list.",
    ),
    "animals": (
        "Keep only the living creatures.",
        "Which of these can breathe and move about?",
        "Leave out everything that is not a creature.",
    ),
}

_SUBJECTS = ("The page", "This list", "Every word", "A letter", "The end", "A number", "Nothing")
_VERBS = ("follows", "closes", "opens", "has", "begins with", "runs to", "takes", "moves", "keeps", "remove", "gives")
_TAILS = (
    "the opposite order",
    "what runs backwards",
    "back to the start",
    "longer than all others",
    "room to breathe",
    "the size of most letters",
    "how many are there",
    "what they cross out",
    "first of these words",
    "only living creatures",
    "everything about it",
)


def draw_list(rng: random.Random, skill: str) -> list[str]:
    """Three to five distinct nouns for which `skill` has exactly one right answer."""
    nouns: list[str]
    while True:
        count = rng.choice(LENGTHS)
        if skill == "animals":
            animals = rng.randint(1, count - 1)
            nouns = rng.sample(ANIMALS, animals) + rng.sample(THINGS, count - animals)
            rng.shuffle(nouns)
        else:
            nouns = rng.sample(NOUNS, count)
        if skill != "longest" or sorted(map(len, nouns))[-1] > sorted(map(len, nouns))[-2]:
            return nouns


@cache
def commands() -> dict[str, list[str]]:
    """Each skill's commands, the one-word one first."""
    return json.loads(Path(__file__).with_name("commands.json").read_text(encoding="utf-8"))


def ask(command: str, nouns: Sequence[str]) -> str:
    """A user's turn: the command or question, an empty line, the list."""
    return f"{command}\n\n{', '.join(nouns)}"


def small_talk(rng: random.Random) -> str:
    """A statement with the English words of the questions; it asks for nothing and answers nothing."""
    return f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_TAILS)}."
