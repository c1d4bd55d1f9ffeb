"""Memory bandwidth: copies within the memory of the card, or of the machine."""

from __future__ import annotations

from loradock.checks.base import Check, Finding, Intent
from loradock.checks.known import peak
from loradock.checks.seen import used_cards
from loradock.checks.speeds import judge, medians
from loradock.facts import Facts
from loradock.host import Host

CARD_BYTES, CPU_BYTES = 1 << 30, 128 << 20


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A copy reads and writes each byte: twice its size."""
    import torch

    on_card = facts.has_gpu and not plan.refuses_gpu
    size = CARD_BYTES if on_card else CPU_BYTES
    source = torch.ones(size, dtype=torch.uint8, device="cuda" if on_card else "cpu")
    target = torch.empty_like(source)
    seconds = medians(
        {"copy": lambda: target.copy_(source)}, settle=torch.cuda.synchronize if on_card else lambda: None
    )
    known = peak(facts.gpu.name) if on_card else None
    return [
        judge(
            "memory-bandwidth",
            {"copy_gb_per_second": 2 * size / seconds["copy"] / 1e9},
            subject=f"copies in the memory of {facts.gpu.name if on_card else 'the machine'}",
            peak=known,
            published=known and known.memory,
            cards=used_cards(host, afresh=True) if on_card else (),
        )
    ]


CHECK = Check(
    name="memory-bandwidth",
    group="bench",
    proves="Copies in the memory of the card reach their share of the published GB/s.",
    look=look,
    level="bench",
    limit_seconds=60,
)
