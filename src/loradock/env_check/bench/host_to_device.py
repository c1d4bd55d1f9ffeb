"""Host to device: pinned memory to the card and back, over PCIe."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent
from loradock.env_check.known import peak
from loradock.env_check.seen import meanwhile, own_cards
from loradock.env_check.speeds import judge, medians
from loradock.facts import Facts, Gpu
from loradock.machine import Host
from loradock.machine.answers import CardState

SIZE_BYTES = 256 << 20


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Every card that this process may use, one after another: side by side they would share the machine's memory."""
    cards = own_cards(host, facts)
    return [_on_card(host, number, card, facts.gpus[number]) for number, card in cards.items()]


def _on_card(host: Host, number: int, card: CardState, gpu: Gpu) -> Finding:
    """Both directions in turns; the link wakes up to its full generation meanwhile."""
    import torch

    with torch.cuda.device(number):
        pinned = torch.empty(SIZE_BYTES, dtype=torch.uint8, pin_memory=True)
        on_card = torch.empty(SIZE_BYTES, dtype=torch.uint8, device=f"cuda:{number}")
        seconds = medians(
            {
                "to_device": lambda: on_card.copy_(pinned, non_blocking=True),
                "to_host": lambda: pinned.copy_(on_card, non_blocking=True),
            },
            settle=torch.cuda.synchronize,
        )
    known = peak(gpu.name)
    return judge(
        "host-to-device",
        {f"{way}_gb_per_second": SIZE_BYTES / each / 1e9 for way, each in seconds.items()},
        subject=f"pinned memory to {card.label} and back",
        peak=known,
        published=known and known.pcie,
        card=meanwhile(host, card),
    )


CHECK = Check(
    name="host-to-device",
    group="bench",
    proves="Transfers between pinned memory and each card reach their share of the PCIe link's GB/s.",
    look=look,
    level="bench",
    needs="gpu",
    limit_seconds=60,
)
