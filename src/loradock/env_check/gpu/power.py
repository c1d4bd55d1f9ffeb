"""Power: nobody has capped a card below its default."""

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

SLACK = 0.99


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The limit that is enforced, whoever set it, against the default."""
    return on_host(each(used_cards(host), judge, fine="power limits as they were delivered"), facts)


def judge(card: CardState) -> Finding | None:
    """None where the driver does not say, as for laptops."""
    limit, default = card.power_enforced_watts or card.power_limit_watts, card.power_default_watts
    if not limit or not default or limit >= default * SLACK:
        return None
    return warning(
        f"{card.label} is limited to {limit:.0f} of {default:.0f} W",
        remedy=f"sudo nvidia-smi -i {card.index} -pl {default:.0f}",
    )


CHECK = Check(
    name="power",
    group="gpu",
    proves="A card may draw the power that it was delivered with.",
    look=look,
    needs="gpu",
)
