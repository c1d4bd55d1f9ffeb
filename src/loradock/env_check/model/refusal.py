"""An error of a lower room as a finding: what the run would end with, told before it begins."""

from __future__ import annotations

from loradock.env_check.base import Finding, error
from loradock.errors import LoradockError


def refusal(raised: LoradockError, *, remedy: str) -> list[Finding]:
    """A finding for each problem that the error carries, or one for the error itself; `remedy` fixes them all."""
    problems_text = [f"{problem.file}: {problem.what}" if problem.file else problem.what for problem in raised.problems]
    return [error(one_line(what), remedy=remedy, ends=type(raised)) for what in problems_text or [raised.what]]


def one_line(text: str) -> str:
    """The first line of a text."""
    return text.strip().partition("\n")[0]
