"""Clocks: nobody has set a card's application clocks below its default."""

from __future__ import annotations

from loradock.env_check.base import (
    Check,
    Finding,
    Intent,
    warning,
)
from loradock.env_check.seen import each, on_host, used_cards
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import CardState


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The default is the measure, not the maximum: a T4's default lies far below it, and it boosts above."""
    return on_host(each(used_cards(host), judge, fine="clocks as they were delivered"), facts)


def judge(card: CardState) -> Finding | None:
    """Each of the two clocks against its own default."""
    pairs = {
        "SM": (card.sm_application_mhz, card.sm_default_mhz),
        "memory": (card.memory_application_mhz, card.memory_default_mhz),
    }
    lowered = [
        f"{name} {now} of {default} MHz" for name, (now, default) in pairs.items() if now and default and now < default
    ]
    if not lowered:
        return None
    return warning(
        f"{card.label} has lowered application clocks: {', '.join(lowered)}",
        remedy=f"sudo nvidia-smi -i {card.index} -rac",
    )


CHECK = Check(
    name="clocks",
    group="gpu",
    proves="The application clocks of a card are not set below their default.",
    look=look,
    needs="gpu",
)
