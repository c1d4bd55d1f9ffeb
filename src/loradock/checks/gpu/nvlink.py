"""NVLink: a card has as many links up as its sisters."""

from __future__ import annotations

from loradock.checks.base import Check, Finding, Intent, ok, warning
from loradock.checks.seen import used_cards
from loradock.facts import CardState, Facts
from loradock.host import Host


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A card alone needs no link, and one without a bridge has none: only cards of one kind are compared."""
    cards = used_cards(host)
    found = [finding for card in cards if (finding := judge(card, cards))]
    up = sorted({sum(card.nvlinks) for card in cards}, reverse=True)
    return found or [ok(f"{up[0]} NVLinks up" if up and up[0] else "no NVLink in use")]


def judge(card: CardState, cards: tuple[CardState, ...]) -> Finding | None:
    """Fewer links up than a sister; an SXM module has all of its links or none."""
    sisters = [other for other in cards if other.name == card.name and len(other.nvlinks) == len(card.nvlinks)]
    most = max((sum(other.nvlinks) for other in sisters), default=0)
    if len(cards) > 1 and most and "SXM" in (card.name or ""):
        most = len(card.nvlinks)
    if sum(card.nvlinks) >= most:
        return None
    down = ", ".join(str(link) for link, is_up in enumerate(card.nvlinks) if not is_up)
    return warning(
        f"{card.label} has {sum(card.nvlinks)} of {most} NVLinks up (down: {down})",
        remedy="sudo systemctl restart nvidia-fabricmanager && nvidia-smi nvlink --status",
    )


CHECK = Check(
    name="nvlink",
    group="gpu",
    proves="No card has fewer NVLinks up than the others of its kind.",
    look=look,
    needs="gpu",
)
