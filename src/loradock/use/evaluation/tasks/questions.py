"""Questions with numbered answers: answer1 ... answer5."""

from __future__ import annotations

from loradock.use.evaluation.tasks.base import Task

WORDS = ("answer1", "answer2", "answer3", "answer4", "answer5")

SIQA = Task(name="siqa", folder="social_i_qa", words=WORDS)
"""Social IQa (Sap et al. 2019)."""
ARC_EASY = Task(name="arc-easy", folder="ARC-Easy", words=WORDS)
ARC_CHALLENGE = Task(name="arc-challenge", folder="ARC-Challenge", words=WORDS)
"""ARC (Clark et al. 2018)."""
OPENBOOKQA = Task(name="openbookqa", folder="openbookqa", words=WORDS)
"""OpenBookQA (Mihaylov et al. 2018)."""
