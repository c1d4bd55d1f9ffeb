"""`loradock prune`: free the space that loradock's images, containers, build cache and scratch take."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.page import say
from loradock.commands.paths import LocalPath
from loradock.delivery.image.engine import connect
from loradock.delivery.image.prune import DEFAULT_AGE_SECONDS, Decision, Entry, Rules, decide, parse_age, parse_size
from loradock.delivery.image.prune_engine import inventory, take
from loradock.delivery.image.prune_scratch import scratch_entries, scratch_root, take_scratch
from loradock.delivery.image.scratch import MARKER, Scratch, default_scratch, held
from loradock.errors import EnvironmentUnfit, StorageError
from loradock.text.amounts import duration_text, size_text

if TYPE_CHECKING:
    from docker import DockerClient

SHOWN_ALIKE = 3


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Where a pruning works: an engine, a scratch, or both."""

    client: DockerClient | None
    scratch: Path | None

    def free_bytes(self) -> dict[str, int]:
        """Free bytes of each file system that holds the engine's root or the scratch, as far as this machine sees."""
        roots = [Path(str(self.client.info()["DockerRootDir"]))] if self.client else []
        roots += [self.scratch] if self.scratch else []
        free: dict[int, tuple[str, int]] = {}
        for root in roots:
            if root.is_dir():
                facts = os.statvfs(root)
                free.setdefault(root.stat().st_dev, (str(root), facts.f_bfree * facts.f_frsize))
        return dict(free.values())

    def take(self, entry: Entry) -> str:
        """Remove an entry; the reason where it could not be."""
        if entry.kind != "scratch":
            return take(self.client, entry) if self.client else "no engine"
        try:
            take_scratch(self.scratch or Path(), entry.name)
        except OSError as error:
            return f"could not be deleted: {error.strerror}"
        return ""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--apply", "is_applied", is_flag=True, help="Delete. Without --apply this is a dry run.")
@click.option(
    "--older-than", metavar="AGE", help="Keep what was used within this time: 90m, 24h (the default), 7d, 2w, 0."
)
@click.option("--keep-size", metavar="SIZE", default="0", help="Delete the oldest until the rest fits: 20GB.")
@click.option(
    "--all", "takes_all", is_flag=True, help="Any age unless --older-than is given, and the newest image too."
)
@click.option(
    "--scratch",
    type=LocalPath(),
    metavar="DIR",
    help="Scratch folder of the builds, besides the default one.",
)
@click.option("--name", "names", multiple=True, metavar="GLOB", help="Another name of your images, e.g. trainer.")
@click.option(
    "--engine/--no-engine", default=True, help="Include images, containers and build cache (default), or not."
)
@click.option("--json", "as_json", is_flag=True, help="Print every entry with its reason, and the totals, as JSON.")
def prune(
    is_applied: bool,
    older_than: str | None,
    keep_size: str,
    takes_all: bool,
    scratch: Path | None,
    names: tuple[str, ...],
    engine: bool,
    as_json: bool,
) -> None:
    """Free space that loradock uses: only what carries its label or lies in its scratch folder.

    \b
    loradock prune
    loradock prune --apply --older-than 7d

    A dry run unless --apply is given. Volumes, build records and running containers are never removed.
    """
    root = _scratch(scratch)
    age_seconds = parse_age(older_than) if older_than else 0.0 if takes_all else DEFAULT_AGE_SECONDS
    rules = Rules(
        now=time.time(),
        older_than_seconds=age_seconds,
        keep_size_bytes=parse_size(keep_size),
        takes_newest=takes_all,
    )
    with ExitStack() as stack:
        try:
            client = stack.enter_context(closing(connect())) if engine else None
        except EnvironmentUnfit as error:
            error.hint = f"{error.hint}; loradock prune --no-engine leaves the engine out"
            raise
        place = Targets(client=client, scratch=root)
        if root and is_applied:
            stack.enter_context(_held(root))
        candidates = inventory(place.client, names=names) if place.client else None
        entries = [*(candidates.entries if candidates else []), *(scratch_entries(root) if root else [])]
        rules = replace(rules, held_parts=candidates.held_parts if candidates else ())
        decisions = decide(entries, rules=rules)
        bytes_before = place.free_bytes()
        if is_applied:
            decisions = [_applied(place, decision) for decision in decisions]
        bytes_after = place.free_bytes()
    gained = {where: bytes_after[where] - free for where, free in bytes_before.items() if where in bytes_after}
    if as_json:
        click.echo(
            json.dumps(_as_json(decisions, rules, is_applied=is_applied, free=bytes_after, gained=gained), indent=2)
        )
    else:
        _print(decisions, rules, is_applied=is_applied, gained=gained)
    if failed := [decision for decision in decisions if decision.why.startswith("could not be deleted")]:
        raise StorageError(
            f"{len(failed)} could not be deleted, the first: {failed[0].entry.name}: {failed[0].why}",
            hint="run it as the user who owns them",
        )


def _scratch(named: Path | None) -> Path | None:
    """The scratch that was named, or the default one where there is one."""
    if named is not None:
        return scratch_root(named.absolute())
    usual = default_scratch()
    return usual if (usual / MARKER).is_file() else None


def _held(root: Path) -> Any:
    """The lock that a build holds."""
    return held(Scratch(root=root))


def _applied(place: Targets, decision: Decision) -> Decision:
    why = place.take(decision.entry) if decision.is_taken else ""
    return replace(decision, is_taken=False, why=why, freed_bytes=0) if why else decision


def _print(decisions: Sequence[Decision], rules: Rules, *, is_applied: bool, gained: dict[str, int]) -> None:
    for is_taken, title in ((True, "removed" if is_applied else "would be deleted"), (False, "left")):
        alike: dict[tuple[str, str], list[Decision]] = {}
        for decision in (decision for decision in decisions if decision.is_taken == is_taken):
            alike.setdefault((_room(decision.entry), "" if is_taken else decision.why), []).append(decision)
        if alike:
            click.echo(f"{title}:")
        for group in alike.values():
            _print_alike(group, rules)
    total = sum(decision.freed_bytes for decision in decisions)
    click.echo(f"{'freed' if is_applied else 'would free'}: {size_text(total)}; shared data counted once")
    if is_applied:
        for where, size_bytes in gained.items():
            sign = "-" if size_bytes < 0 else "+"
            click.echo(f"free space on {where}: {sign}{size_text(abs(size_bytes))} (others may be writing there)")
    elif any(decision.is_taken for decision in decisions):
        say("dry run: nothing was deleted; add --apply to delete", stderr=True)


def _room(entry: Entry) -> str:
    """What is reported together: the cache, a room of the scratch; everything else one by one."""
    if entry.kind == "scratch":
        return entry.name.partition("/")[0]
    return entry.kind if entry.kind == "cache" else entry.id


def _print_alike(group: Sequence[Decision], rules: Rules) -> None:
    """One line an entry; the largest and a count where many of a room share a fate."""
    if len(group) > SHOWN_ALIKE:
        largest = max(group, key=lambda decision: decision.entry.size_bytes).entry
        name = f"{len(group)} entries, the largest: {largest.name}"
        parts = {part: size for decision in group for part, size in decision.entry.parts.items()}
        last_used = max(decision.entry.last_used for decision in group)
        group = [replace(group[0], entry=replace(largest, name=name, parts=parts, last_used=last_used))]
    for decision in group:
        entry = decision.entry
        size = "" if entry.kind == "tag" else size_text(entry.size_bytes)
        reason = "" if decision.is_taken else f"  ({decision.why})"
        age = duration_text(rules.now - entry.last_used) if entry.last_used else "-"
        click.echo(f"  {entry.kind:<10}{size:>9}  {age:>6}  {entry.name}{reason}")


def _as_json(
    decisions: Sequence[Decision], rules: Rules, *, is_applied: bool, free: dict[str, int], gained: dict[str, int]
) -> dict[str, Any]:
    return {
        "applied": is_applied,
        "older_than_seconds": rules.older_than_seconds,
        "keep_size_bytes": rules.keep_size_bytes,
        "freed_bytes": sum(decision.freed_bytes for decision in decisions),
        "free_bytes": free,
        "gained_bytes": gained,
        "entries": [
            {
                "kind": decision.entry.kind,
                "id": decision.entry.id,
                "name": decision.entry.name,
                "size_bytes": decision.entry.size_bytes,
                "freed_bytes": decision.freed_bytes,
                "age_seconds": round(rules.now - decision.entry.last_used),
                "taken": decision.is_taken,
                "why": decision.why,
            }
            for decision in decisions
        ],
    }
