"""How near a text is to the right one, from 0 to 1: exact, F1 of words, ROUGE-L."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
WORDS = re.compile(r"[^\W_]+")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact(answer: str, right: str) -> float:
    """1 where both say the same, white space aside; case and punctuation matter."""
    return float(answer.split() == right.split())


def f1(answer: str, right: str) -> float:
    """F1 of the words that both have, as SQuAD has it (Rajpurkar et al. 2016): no case, punctuation or articles."""
    first, second = _plain(answer), _plain(right)
    if not first or not second:
        return float(first == second)
    shared = sum((Counter(first) & Counter(second)).values())
    return 2 * shared / (len(first) + len(second))


def _plain(text: str) -> list[str]:
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def rouge_l(answer: str, right: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004): lower case, letters and digits, no stemming."""
    first, second = (WORDS.findall(text.lower()) for text in (answer, right))
    if not first or not second:
        return float(first == second)
    return 2 * _common(first, second) / (len(first) + len(second))


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    above = [0] * (len(second) + 1)
    for word in first:
        line = [0]
        for place, token in enumerate(second):
            line.append(above[place] + 1 if word == token else max(line[-1], above[place + 1]))
        above = line
    return above[-1]


METRICS: dict[str, Callable[[str, str], float]] = {"exact": exact, "f1": f1, "rouge-l": rouge_l}
