"""Exact, F1 and ROUGE-L on texts whose score can be counted by hand."""

from __future__ import annotations

import pytest

from loradock.use.evaluation.text_metrics import exact, f1, rouge_l


@pytest.mark.parametrize(
    ("given", "right", "wanted"),
    [(" seven\n", "seven", 1), ("Seven", "seven", 0), ("seven.", "seven", 0), ("a  b", "a b", 1), ("", "a", 0)],
)
def test_exact_looks_past_white_space_alone(given: str, right: str, wanted: float) -> None:
    assert exact(given, right) == wanted


@pytest.mark.parametrize(
    ("given", "right", "wanted"),
    [
        ("The Cat!", "cat", 1.0),
        ("the cat sat", "a cat", 2 / 3),
        ("cat cat", "cat", 2 / 3),
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
        ("the", "a", 1.0),
    ],
)
def test_f1_counts_words_without_case_punctuation_and_articles(given: str, right: str, wanted: float) -> None:
    assert f1(given, right) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("given", "right", "wanted"),
    [
        ("police kill the gunman", "police killed the gunman", 0.75),
        ("the gunman kill police", "police killed the gunman", 0.5),
        ("Seven horses, seven.", "seven horses", 0.8),
        ("", "", 1.0),
        ("x", "", 0.0),
    ],
)
def test_rouge_l_counts_the_longest_common_subsequence(given: str, right: str, wanted: float) -> None:
    assert rouge_l(given, right) == pytest.approx(wanted)
