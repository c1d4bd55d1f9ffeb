"""ECC: no memory of a card lost data since the driver was loaded, and none waits to be replaced."""

from __future__ import annotations

from loradock.env_check.base import (
    Check,
    Finding,
    Intent,
    error,
    ok,
    warning,
)
from loradock.env_check.seen import on_host, used_cards
from loradock.errors import GpuSuspect
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import CardState


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Judge each card that this process may use."""
    cards = used_cards(host)
    measured = {
        f"gpu_{card.index}_{name}_errors": float(count)
        for card in cards
        for name, count in (("corrected", card.corrected_volatile), ("uncorrected_ever", card.uncorrected_aggregate))
        if count
    }
    found = [finding for card in cards if (finding := judge(card, cards))]
    with_ecc = sum(bool(card.is_ecc) for card in cards)
    return on_host(found, facts) or [
        ok(f"no uncorrected memory error; {with_ecc} of {len(cards)} cards have ECC on", **measured)
    ]


def judge(card: CardState, cards: tuple[CardState, ...]) -> Finding | None:
    """The worst of what the counters say: a row that cannot be replaced, lost data, a replacement that waits."""
    reset = f"sudo nvidia-smi --gpu-reset -i {card.index}"
    if card.has_remap_failed:
        rest = ",".join(str(other.index) for other in cards if not other.has_remap_failed)
        return error(
            f"{card.label} could not replace a faulty row of its memory: it has to be exchanged",
            remedy=f"export CUDA_VISIBLE_DEVICES={rest}" if rest else "loradock train --set device=cpu ...",
            ends=GpuSuspect,
        )
    if card.uncorrected_volatile:
        return error(
            f"{card.label} had uncorrected memory errors since its driver was loaded",
            remedy=reset,
            ends=GpuSuspect,
            uncorrected_errors=card.uncorrected_volatile,
        )
    if card.has_remap_pending or card.has_retirement_pending:
        what = "row" if card.has_remap_pending else "page"
        return warning(f"{card.label} has a faulty {what} of memory, replaced at its next reset", remedy=reset)
    return None


CHECK = Check(
    name="ecc",
    group="gpu",
    proves="No card had an uncorrected memory error, and no faulty row or page of memory waits to be replaced.",
    look=look,
    needs="gpu",
)
