"""The cards that checks judge, out of all that the host shows, and how findings name several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loradock.checks.base import Finding, ok
from loradock.facts import CardState, Facts
from loradock.host import Host


def used_cards(host: Host, *, afresh: bool = False) -> tuple[CardState, ...]:
    """The cards that this process may use and that answer."""
    return tuple(card for card in host.card_states(afresh=afresh) if card.is_visible and not card.failure)


def own_cards(host: Host, facts: Facts) -> tuple[CardState, ...]:
    """The cards of this process alone: its own where others of the same run use the rest."""
    cards = used_cards(host)
    return cards if facts.processes_here == 1 or not cards else (cards[facts.local_rank % len(cards)],)


def each(
    cards: Sequence[CardState], judge: Callable[[CardState], Finding | None], *, fine: str, **measured: float
) -> list[Finding]:
    """The findings of the cards that have one; where none has, one that all is well."""
    found = [finding for finding in map(judge, cards) if finding]
    return found or [ok(fine, **measured)]


def plural(count: int, noun: str) -> str:
    """1 card, 2 cards."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
