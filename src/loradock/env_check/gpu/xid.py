"""Xid: the kernel's log holds no error report of a card that this process may use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from loradock.env_check.base import (
    Check,
    Finding,
    Intent,
    ok,
    warning,
)
from loradock.env_check.known import xids
from loradock.env_check.seen import on_host, used_cards
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import CardState

XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Reports since the machine was started; one that a program can cause is left out."""
    lines = host.kernel_log()
    if lines is None:
        return [ok("the kernel's log is not readable here")]
    cards = used_cards(host)
    found = [finding for card in cards if (finding := judge(card, lines, xids()))]
    return on_host(found, facts) or [ok("the kernel's log holds no report of a faulty card")]


def judge(card: CardState, lines: Sequence[str], meanings: Mapping[int, str]) -> Finding | None:
    """The latest report about this card; a warning, since a reset may have mended it."""
    reports = [found for line in lines if (found := XID.search(line)) and _is_of(card, found[1])]
    numbers = [int(found[2]) for found in reports if int(found[2]) in meanings]
    if not numbers:
        return None
    return warning(
        f"{card.label} reported Xid {numbers[-1]} since the start: {meanings[numbers[-1]]}",
        remedy=f"sudo dmesg | grep Xid && sudo nvidia-smi --gpu-reset -i {card.index}",
        reports=len(numbers),
    )


def _is_of(card: CardState, address: str) -> bool:
    """The log names bus and device, without the function that NVML adds: 0000:17:00."""
    return card.pci_bus is not None and card.pci_bus.startswith(address.lower())


CHECK = Check(
    name="xid",
    group="gpu",
    proves="The kernel's log holds no Xid report of a faulty card, where it can be read.",
    look=look,
    needs="gpu",
)
