"""The containers, images and build cache of an engine that `loradock prune` may take.

Ours is what carries our label, and the cache of the build steps that call our scripts. How the engine keeps it (tried
on 20.10): an image and the cache record of its step hold the same layer, which is free when both have gone; a record is
removed only after those that build on it; a record says its command and size, its parent, and no image. So records are
told by their command, copied files by standing between such steps, and layers are matched by command and size.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import fnmatch
import hashlib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.image import labels
from loradock.image.prune import Entry

if TYPE_CHECKING:
    from docker import DockerClient

OUR_NAMES = ("loradock", "loradock-*")
# A build step of ours calls a script below the mount of docker/, or the compile script.
OUR_STEP = re.compile(r"\s/(?:run/loradock/[\w./-]+|opt/loradock/flash-attn/flash_attn)\b|-c mkdir /wheels$")
WITHOUT_LAYER = re.compile(
    r"(?:/bin/sh -c #\(nop\) +)?"
    r"(?:ARG|CMD|ENTRYPOINT|ENV|EXPOSE|HEALTHCHECK|LABEL|MAINTAINER|ONBUILD|SHELL|STOPSIGNAL|USER|VOLUME)\b"
)
STOPPED = {"created", "exited", "dead"}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of an image: the id of it and all below it, its bytes, the step that made it."""

    chain: str
    size_bytes: int
    step: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An image as the engine tells it. `shared_bytes` is what it shares with other images, by the engine's count."""

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    last_used: float
    layers: tuple[Layer, ...]
    is_derived: bool

    @property
    def is_ours(self) -> bool:
        """Our label, and nobody built further on it."""
        return labels.IMAGE in self.labels and not self.is_derived

    @property
    def parts(self) -> dict[str, int]:
        """Its layers' bytes by their ids."""
        return {layer.chain: layer.size_bytes for layer in self.layers}


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Entries of ours, and the storage that something of others holds."""

    entries: list[Entry]
    held_parts: set[str]


def inventory(client: DockerClient, *, names: Sequence[str] = ()) -> Inventory:
    """Read the engine. `names`: further repository names (globs) whose tags are ours to take."""
    usage = client.api.df()
    images = [image for summary in usage["Images"] or [] if (image := _seen(client, summary))]
    ours = {image.id for image in images if image.is_ours}
    containers: list[Entry] = []
    users: dict[str, list[str]] = {}
    for item in usage["Containers"] or []:
        entry = _container(client, item, ours)
        users.setdefault(item["ImageID"], []).append(entry.id if entry else item["Names"][0].lstrip("/"))
        containers += [entry] if entry else []
    entries: list[Entry] = []
    for image in images:
        if labels.IMAGE in image.labels:
            entries += _image_entries(image, users.get(image.id, []), containers, (*OUR_NAMES, *names))
    entries = _newest_marked(entries)
    held = {chain for image in images if labels.IMAGE not in image.labels for chain in image.parts}
    cache, held_by_others = _cache(usage.get("BuildCache") or [], images)
    return Inventory(entries=containers + entries + cache, held_parts=held | held_by_others)


def _seen(client: DockerClient, summary: Mapping[str, Any]) -> Seen | None:
    """One image with its layers; where its history does not fit them, they count as one piece of what it alone has.

    None where it has gone since it was listed.
    """
    from docker.errors import NotFound

    try:
        attrs = client.api.inspect_image(summary["Id"])
        history = list(reversed(client.api.history(summary["Id"])))
    except NotFound:
        return None
    steps = [step for step in history if not WITHOUT_LAYER.match(step["CreatedBy"])]
    chains = list(_chains(attrs["RootFS"].get("Layers") or []))
    if len(steps) == len(chains):
        layers = tuple(
            Layer(chain=chain, size_bytes=step["Size"], step=step["CreatedBy"])
            for chain, step in zip(chains, steps, strict=True)
        )
    else:
        alone = Layer(chain=summary["Id"], size_bytes=summary["Size"] - max(summary["SharedSize"], 0), step="")
        layers = (alone, *(Layer(chain=chain, size_bytes=0, step="") for chain in chains))
    tagged = (attrs.get("Metadata") or {}).get("LastTagTime") or attrs["Created"]
    return Seen(
        id=summary["Id"],
        tags=tuple(tag for tag in summary["RepoTags"] or [] if tag != "<none>:<none>"),
        labels=summary["Labels"] or {},
        last_used=max(_seconds(attrs["Created"]), _seconds(tagged)),
        layers=layers,
        is_derived=_is_derived(history),
    )


def _chains(layers: Sequence[str]) -> Iterator[str]:
    chain = ""
    for layer in layers:
        chain = f"sha256:{hashlib.sha256(f'{chain} {layer}'.encode()).hexdigest()}" if chain else layer
        yield chain


def _is_derived(history: Sequence[Mapping[str, Any]]) -> bool:
    """True where a step after the one that set our label wrote files: somebody built on our image, label and all."""
    marks = [n for n, step in enumerate(history) if "LABEL" in step["CreatedBy"] and labels.IMAGE in step["CreatedBy"]]
    after = history[marks[-1] + 1 :] if marks else []
    return any(step["Size"] and "WORKDIR" not in step["CreatedBy"] for step in after)


def _container(client: DockerClient, item: Mapping[str, Any], ours: Collection[str]) -> Entry | None:
    """A container with our label or of our image; None where it is another, or has gone since it was listed."""
    if labels.CONTAINER not in (item["Labels"] or {}) and item["ImageID"] not in ours:
        return None
    from docker.errors import NotFound

    try:
        state = client.api.inspect_container(item["Id"])["State"]
    except NotFound:
        return None
    return Entry(
        kind="container",
        id=item["Id"],
        name=item["Names"][0].lstrip("/"),
        last_used=max(float(item["Created"]), _seconds(state["FinishedAt"])),
        parts={item["Id"]: item.get("SizeRw", 0)},
        kept="" if item["State"] in STOPPED else f"it is {item['State']}",
    )


def _image_entries(
    image: Seen, users: Collection[str], containers: Sequence[Entry], names: Collection[str]
) -> list[Entry]:
    """The image; where a name that is not ours keeps it, it stays, and only our names go."""
    ours = [tag for tag in image.tags if is_our_name(tag, names)]
    foreign = [tag for tag in image.tags if tag not in ours]
    known = {container.id for container in containers}
    strangers = [user for user in users if user not in known]
    if image.is_derived:
        kept = "built on our image by somebody else"
    elif strangers:
        kept = f"the container {strangers[0]} uses it"
    else:
        kept = f"{foreign[0]} is no name of ours (--name takes it)" if foreign else ""
    finished = [container.last_used for container in containers if container.id in users]
    whole = Entry(
        kind="image",
        id=image.id,
        name=", ".join(image.tags) or f"{image.id[7:19]} (no name)",
        last_used=max([image.last_used, *finished]),
        parts=image.parts,
        needs=[user for user in users if user in known],
        kept=kept,
    )
    tags = [Entry(kind="tag", id=tag, name=tag, last_used=image.last_used) for tag in ours] if foreign else []
    return [whole] if image.is_derived else [*tags, whole]


def is_our_name(tag: str, names: Collection[str]) -> bool:
    """True where the last part of the repository fits a name: `site:5000/team/loradock:1` is ours."""
    repository = tag.rpartition(":")[0].rpartition("/")[2]
    return any(fnmatch.fnmatchcase(repository, name) for name in names)


def _newest_marked(entries: Sequence[Entry]) -> list[Entry]:
    """The same, the newest image that has a name marked as such."""
    named = [e for e in entries if e.kind == "image" and not e.kept and not e.name.endswith("(no name)")]
    newest = max(named, key=lambda entry: entry.last_used, default=None)
    return [dataclasses.replace(entry, is_newest=True) if entry is newest else entry for entry in entries]


def _cache(records: Sequence[Mapping[str, Any]], images: Sequence[Seen]) -> tuple[list[Entry], set[str]]:
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
    found = True
    while found:
        found = {
            record["ID"]
            for record in records
            if record["ID"] not in ours
            and record["Description"].startswith("fileop")
            and ours.intersection(_parents(record)).intersection(known)
        }
        ours |= found
    return ours


def _record_layers(
    records: Sequence[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]], images: Sequence[Seen]
) -> dict[str, str]:
    """The layer that a record holds together with an image: the same command and bytes, or copied onto such a one."""
    every = {layer.chain: layer for image in images for layer in image.layers}.values()
    above: dict[str, list[Layer]] = {}
    for image in images:
        for lower, upper in itertools.pairwise(image.layers):
            above.setdefault(lower.chain, []).append(upper)
    found: dict[str, str] = {}
    for record in sorted((r for r in records if r["Shared"]), key=lambda r: _depth(r, known)):
        command = record["Description"].partition("from exec ")[2]
        on = [layer for parent in _parents(record) for layer in above.get(found.get(parent, ""), [])]
        fits = [layer for layer in on if command or layer.step.startswith(("COPY", "ADD", "WORKDIR"))]
        fits = fits or ([layer for layer in every if command in layer.step] if command else [])
        same = [layer.chain for layer in fits if layer.size_bytes == record["Size"] and command in layer.step]
        # Two builds of one step: each record its own layer, as long as there are enough.
        if same:
            found[record["ID"]] = next((chain for chain in same if chain not in found.values()), same[0])
    return found


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
    kept = "a build uses it" if record["InUse"] else ""
    if foreign:
        kept = kept or f"the image {(*foreign[0].tags, foreign[0].id)[0]} holds it: it frees nothing"
    return Entry(
        kind="cache",
        id=record["ID"],
        name=f"{record['ID'][:12]} {_step_text(record)}",
        last_used=_seconds(record["LastUsedAt"] or record["CreatedAt"]),
        parts=parts,
        needs=[*children, *(image.id for image in holders)],
        kept=kept,
    )


def _step_text(record: Mapping[str, Any]) -> str:
    text = record["Description"]
    command = text.partition("from exec ")[2].removeprefix("/bin/bash -euo pipefail -c ").removeprefix("/bin/sh -c ")
    kind = "cache mount of " if record["Type"] == "exec.cachemount" else ""
    return f"{kind}{' '.join(command.split())}" if command else "files copied" if text.startswith("fileop") else text


def _seconds(stamp: str) -> float:
    return dt.datetime.fromisoformat(stamp).timestamp()


def take(client: DockerClient, entry: Entry) -> str:
    """Remove one container, name, image or cache record, never by force; what the engine says where it refuses."""
    from docker.errors import APIError, ImageNotFound, NotFound

    try:
        if entry.kind == "container":
            client.api.remove_container(entry.id, v=False)
        elif entry.kind == "tag":
            client.api.remove_image(entry.id, noprune=True)
        elif entry.kind == "image":
            _take_image(client, entry)
        elif not client.api.prune_builds(filters=_by_id(entry), all=True)["CachesDeleted"]:
            return "the engine kept it: something holds it"
    except (ImageNotFound, NotFound):
        return "it was gone already"
    except APIError as error:
        return str(error.explanation or error)
    return ""


def _by_id(entry: Entry) -> Any:
    """The filter takes an expression, and one at a time."""
    return {"id": [f"^{entry.id}$"]}


def _take_image(client: DockerClient, entry: Entry) -> None:
    """Remove each of its names that still is of this image; without names, the image."""
    tags = [tag for tag in entry.name.split(", ") if ":" in tag]
    for tag in tags:
        if client.api.inspect_image(tag)["Id"] == entry.id:
            client.api.remove_image(tag, noprune=True)
    if not tags:
        client.api.remove_image(entry.id, noprune=True)
