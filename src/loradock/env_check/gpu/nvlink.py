"""NVLink: a card has as many links up as its sisters."""

from __future__ import annotations

from loradock.env_check.base import (
    Check,
    Finding,
    Intent,
    ok,
    warning,
)
from loradock.env_check.seen import on_host, used_cards
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import CardState

SWITCH = "/dev/nvidia-nvswitch0"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A card alone needs no link, and one without a bridge has none: only cards of one kind are compared."""
    cards, has_switch = used_cards(host), host.exists(SWITCH)
    is_virtual = " hypervisor" in (host.read_text("/proc/cpuinfo") or "")
    judged = (judge(card, cards, is_virtual=is_virtual, has_switch=has_switch) for card in cards)
    found = on_host([finding for finding in judged if finding], facts)
    up = sorted({sum(card.nvlinks) for card in cards}, reverse=True)
    return found or [ok(f"{up[0]} NVLinks up" if up and up[0] else "no NVLink in use")]


def judge(card: CardState, cards: tuple[CardState, ...], *, is_virtual: bool, has_switch: bool) -> Finding | None:
    """Fewer links up than a sister; an SXM module has all of its links or none.

    In a virtual machine the links to the cards of other machines are down, a different number on each card; those to
    a switch are all there.
    """
    if is_virtual and not has_switch:
        return None
    sisters = [other for other in cards if other.name == card.name and len(other.nvlinks) == len(card.nvlinks)]
    most = max((sum(other.nvlinks) for other in sisters), default=0)
    if len(cards) > 1 and most and "SXM" in (card.name or "") and not is_virtual:
        most = len(card.nvlinks)
    if sum(card.nvlinks) >= most:
        return None
    down = ", ".join(str(link) for link, is_up in enumerate(card.nvlinks) if not is_up)
    look_at = f"nvidia-smi nvlink --status -i {card.index}"
    return warning(
        f"{card.label} has {sum(card.nvlinks)} of {most} NVLinks up (down: {down})",
        remedy=f"sudo systemctl restart nvidia-fabricmanager && {look_at}" if has_switch else look_at,
    )


CHECK = Check(
    name="nvlink",
    group="gpu",
    proves="No card has fewer NVLinks up than the others of its kind.",
    look=look,
    needs="gpu",
)
