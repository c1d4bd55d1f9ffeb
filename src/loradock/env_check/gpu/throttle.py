"""Throttle: nothing holds a card's clocks down by heat or by the power supply."""

from __future__ import annotations

import time

from loradock.env_check.base import (
    Check,
    Finding,
    Intent,
    ok,
    warning,
)
from loradock.env_check.seen import used_cards
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import CardState

PAUSE_SECONDS = 0.3
# The nearest cause first: the general "HW Slowdown" is set with each of the more exact ones.
CAUSES = {
    "HW Power Brake Slowdown": "its power supply calls a halt (power brake)",
    "HW Thermal Slowdown": "it is too hot (hardware)",
    "SW Thermal Slowdown": "it is too hot (driver)",
    "HW Slowdown": "heat or the power supply (hardware slowdown)",
}


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Ask twice before saying so: a slowdown shows for a moment when the card changes its state."""
    cards = used_cards(host)
    if any(cause(card) for card in cards):
        time.sleep(PAUSE_SECONDS)
        again = {card.index: card for card in used_cards(host, afresh=True)}
        cards = tuple(again.get(card.index, card) if cause(card) else card for card in cards)
    found = [finding for card in cards if (finding := judge(card))]
    hottest = max((card.temperature_celsius or 0 for card in cards), default=0)
    return found or [ok("the clocks are free", hottest_celsius=hottest)]


def cause(card: CardState) -> str | None:
    """The reason that holds the clocks down, of those that are no choice of anybody; None where none does."""
    return next((reason for reason in CAUSES if reason in (card.slowdowns or ())), None)


def judge(card: CardState) -> Finding | None:
    """A warning, as the run works, at a fraction of its speed."""
    reason = cause(card)
    if reason is None:
        return None
    measured = {
        f"{name}": float(value)
        for name, value in (("celsius", card.temperature_celsius), ("sm_mhz", card.sm_mhz))
        if value is not None
    }
    return warning(
        f"{card.label} is slowed down: {CAUSES[reason]}",
        remedy=f"nvidia-smi -q -i {card.index} -d PERFORMANCE,TEMPERATURE,POWER",
        **measured,
    )


CHECK = Check(
    name="throttle",
    group="gpu",
    proves="Neither heat nor the power supply holds a card's clocks down.",
    look=look,
    needs="gpu",
)
