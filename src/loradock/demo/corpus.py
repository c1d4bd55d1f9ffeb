"""The demo's little world: nouns, list skills, the base's terse lines, and the questions of the fine-tuning data.

A skill is a function from a list of nouns to an answer. The base model learns every skill from terse lines such as
`reverse\nriver, apple, stone\nstone, apple, river`; it never sees a question. The fine-tuning rows ask for the same
skills in English. To add a skill, add its function and its questions here, then rerun `make_data` and `make_base`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

ANIMALS = tuple(
    "bear bee camel cat cow deer dog duck eagle fish fox frog goat horse lion mouse otter owl pig rabbit "
    "seal shark sheep snake swan tiger turtle whale wolf zebra".split()
)
THINGS = tuple(
    "apple basket bell boat book bottle bread bridge butter button candle carpet chair cheese clock cloud coin "
    "desk door drum engine feather flower forest garden glass guitar hammer honey house island jacket jar "
    "kettle key ladder lamp lemon letter mirror mountain needle ocean onion paper pencil pepper piano "
    "pillow plate pocket river rope saddle sand shoe silver spoon stone sugar table tower train tree umbrella "
    "valley violin wagon wheel window winter yarn".split()
)
NOUNS = ANIMALS + THINGS
LENGTHS = (3, 4, 5)


def longest(nouns: Sequence[str]) -> str:
    """The noun with most letters; the lists that `draw_list` makes for this skill have exactly one."""
    return max(nouns, key=len)


SKILLS: dict[str, Callable[[Sequence[str]], str]] = {
    "reverse": lambda nouns: ", ".join(reversed(nouns)),
    "sort": lambda nouns: ", ".join(sorted(nouns)),
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
        "Begin at the end and write every word back to the start.",
    ),
    "sort": (
        "Put these words in alphabetical order.",
        "Arrange the list from A to Z.",
        "How would a dictionary order these words?",
    ),
    "first": (
        "Which word opens the list?",
        "Give only the word that all the others follow.",
        "What does the list begin with?",
    ),
    "last": (
        "Which word closes the list?",
        "Give only the word that nothing follows.",
        "What does the list end with?",
    ),
    "longest": (
        "Which of these words has the most letters?",
        "Find the word that takes the most room on the page.",
        "Give the word that is longer than all the others.",
    ),
    "count": (
        "How many words are there?",
        "Give the number of words in this list.",
        "Tell me the size of the list as a number.",
    ),
    "animals": (
        "Keep only the living creatures.",
        "Which of these can breathe and move about?",
        "Leave out everything that is not a creature.",
    ),
}

_SUBJECTS = ("the page", "a dictionary", "the list", "every word", "a letter", "the others", "the end", "a number")
_VERBS = ("follows", "closes", "opens", "has", "begins with", "runs to", "takes", "leaves", "finds", "moves about")
_TAILS = (
    "in the alphabetical order of words",
    "so that it runs backwards",
    "and back to the start",
    "from A to Z",
    "which is longer than most",
    "as there is only room to breathe",
    "at the opposite size",
    "and they write how many are there",
    "but nothing can turn around what I tell",
    "and living creatures give everything out",
)


def draw_list(rng: random.Random, skill: str) -> list[str]:
    """Three to five distinct nouns for which `skill` has exactly one right answer."""
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


def terse_prompt(skill: str, nouns: Sequence[str]) -> str:
    """The base's own format up to the answer: the skill's name, the list, each on a line."""
    return f"{skill}\n{', '.join(nouns)}\n"


def sentence(rng: random.Random) -> str:
    """A statement with the English words of the questions; it asks for nothing and answers nothing."""
    subject, verb, tail = rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_TAILS)
    text = f"{subject} {verb} the {rng.choice(NOUNS)} {tail}."
    return text[0].upper() + text[1:]
