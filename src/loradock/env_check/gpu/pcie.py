"""PCIe: a card's link has the width that card and slot can have."""

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
    """Width alone: an idle card lowers the generation of its link by itself, the bench level measures it at work."""
    cards = used_cards(host)
    is_virtual = " hypervisor" in (host.read_text("/proc/cpuinfo") or "")
    widths = ", ".join(dict.fromkeys(f"x{card.pcie_width}" for card in cards if card.pcie_width))
    fine = f"PCIe {widths or 'links are not shown'}"
    return on_host(each(cards, lambda card: judge(card, is_virtual=is_virtual), fine=fine), facts)


def judge(card: CardState, *, is_virtual: bool) -> Finding | None:
    """Half a link is a fault to mend, but in a virtual machine it is how the provider wired the card."""
    width, possible = card.pcie_width, card.pcie_width_max
    if not width or not possible or width >= possible or (is_virtual and width * 2 >= possible):
        return None
    return warning(
        f"{card.label} is linked by PCIe x{width} of x{possible}: a loose card or riser, or a narrow slot",
        remedy=f"sudo lspci -vv -s {card.pci_bus} | grep Lnk" if card.pci_bus else f"nvidia-smi -q -i {card.index}",
    )


CHECK = Check(
    name="pcie",
    group="gpu",
    proves="The PCIe link of a card has its full width.",
    look=look,
    needs="gpu",
)
