"""Card memory: no other process holds a noticeable part of it."""

from __future__ import annotations

from loradock.checks.base import Check, Finding, Intent, warning
from loradock.checks.seen import each, own_cards
from loradock.facts import CardState, Facts
from loradock.host import Host

NOTICEABLE = 0.05


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """This process holds none yet, so all that is used is another's."""
    return each(own_cards(host, facts), judge, fine="the memory of the card is free")


def judge(card: CardState) -> Finding | None:
    """By the sum of the processes where they are told, else (in a container they are not) by what is in use."""
    told = [process.used_bytes for process in card.processes if process.used_bytes]
    held = max(sum(told), card.used_bytes or 0)
    if not card.memory_bytes or held <= NOTICEABLE * card.memory_bytes or card.mig_instances:
        return None
    pids = [str(process.pid) for process in card.processes]
    by = f"pid {', '.join(pids)}" if pids else "processes that it does not name here"
    return warning(
        f"{held / 2**30:.0f} of {card.memory_bytes / 2**30:.0f} GiB of {card.label} are held by {by}",
        remedy=f"ps -o pid,user,etime,cmd -p {','.join(pids)}" if pids else "nvidia-smi, outside of this container",
        held_gib=round(held / 2**30, 2),
    )


CHECK = Check(
    name="card-memory",
    group="gpu",
    proves="Other processes hold no more than 5 % of a card's memory.",
    look=look,
    needs="gpu",
)
