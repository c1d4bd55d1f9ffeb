"""The records of an engine's build cache: which are ours, and which layer each holds together with an image.

How the engine keeps it (tried on 20.10): an image and the cache record of its step hold the same layer, which is free
when both have gone; a record is removed only after those that build on it; a record says its command and size, its
parent, and no image. So records are told by their command, copied files by standing between such steps, and layers are
matched by command and size.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from loradock.delivery.image import labels
from loradock.delivery.image.prune import Entry
from loradock.delivery.image.prune_images import Layer, Seen, seconds_of

# A build step of ours calls a script below the mount of docker/, or the compile script.
OUR_STEP = re.compile(r"\s/(?:run/loradock/[\w./-]+|opt/loradock/flash-attn/flash_attn)\b|-c mkdir /wheels$")


def cache_entries(records: Sequence[Mapping[str, Any]], images: Sequence[Seen]) -> tuple[list[Entry], set[str]]:
    """Our records as entries; the layers that the records of others hold."""
    known = {record["ID"]: record for record in records}
    children: dict[str, list[str]] = {}
    for record in records:
        for parent in _parents(record):
            children.setdefault(parent, []).append(record["ID"])
    ours = _our_records(records, known)
    layers = _record_layers(records, known, images)
    entries, held_by_others = [], set()
    for record in records:
        identity = record["ID"]
        parts = {layers[identity]: record["Size"]} if identity in layers else {identity: record["Size"]}
        if identity in ours:
            entries.append(_record_entry(record, parts, children.get(identity, []), images))
        elif record["Shared"]:
            held_by_others |= parts.keys()
    return entries, held_by_others


def _our_records(records: Sequence[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The steps that call our scripts, and the copied files that stand on them."""
    ours = {record["ID"] for record in records if OUR_STEP.search(record["Description"])}
    filtered = True
    while filtered:
        filtered = {
            record["ID"]
            for record in records
            if record["ID"] not in ours
            and record["Description"].startswith("fileop")
            and ours.intersection(_parents(record)).intersection(known)
        }
        ours |= filtered
    return ours


def _record_layers(
    records: Sequence[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]], images: Sequence[Seen]
) -> dict[str, str]:
    """The layer that a record holds together with an image: the same command and bytes, or copied onto such a one."""
    layers = {layer.chain: layer for image in images for layer in image.layers}.values()
    above: dict[str, list[Layer]] = {}
    for image in images:
        for lower, upper in itertools.pairwise(image.layers):
            above.setdefault(lower.chain, []).append(upper)
    entries: dict[str, str] = {}
    for record in sorted((r for r in records if r["Shared"]), key=lambda r: _depth(r, known)):
        command = record["Description"].partition("from exec ")[2]
        on = [layer for parent in _parents(record) for layer in above.get(entries.get(parent, ""), [])]
        fits = [layer for layer in on if command or layer.step.startswith(("COPY", "ADD", "WORKDIR"))]
        fits = fits or ([layer for layer in layers if command in layer.step] if command else [])
        same = [layer.chain for layer in fits if layer.size_bytes == record["Size"] and command in layer.step]
        # Two builds of one step: each record its own layer, as long as there are enough.
        if same:
            entries[record["ID"]] = next((chain for chain in same if chain not in entries.values()), same[0])
    return entries


def _depth(record: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> int:
    return 1 + max((_depth(known[parent], known) for parent in _parents(record) if parent in known), default=0)


def _parents(record: Mapping[str, Any]) -> list[str]:
    """Newer engines name several."""
    return [parent for parent in (record.get("Parents") or [record.get("Parent")]) if parent]


def _record_entry(
    record: Mapping[str, Any], parts: Mapping[str, int], children: Sequence[str], images: Sequence[Seen]
) -> Entry:
    holders = [image for image in images if any(part in image.parts for part in parts)]
    foreign = [image for image in holders if labels.IMAGE not in image.labels]
    reason = "a build uses it" if record["InUse"] else ""
    if foreign:
        reason = reason or f"the image {(*foreign[0].tags, foreign[0].id)[0]} holds it: it frees nothing"
    return Entry(
        kind="cache",
        id=record["ID"],
        name=f"{record['ID'][:12]} {_step_text(record)}",
        last_used=seconds_of(record["LastUsedAt"] or record["CreatedAt"]),
        parts=parts,
        needs=[*children, *(image.id for image in holders)],
        kept=reason,
    )


def _step_text(record: Mapping[str, Any]) -> str:
    text = record["Description"]
    command = text.partition("from exec ")[2].removeprefix("/bin/bash -euo pipefail -c ").removeprefix("/bin/sh -c ")
    kind = "cache mount of " if record["Type"] == "exec.cachemount" else ""
    return f"{kind}{' '.join(command.split())}" if command else "files copied" if text.startswith("fileop") else text
