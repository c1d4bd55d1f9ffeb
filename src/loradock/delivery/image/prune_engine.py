"""The containers, images and build cache of an engine that `loradock prune` may take, and their taking.

Ours is what carries our label (`prune_images`), and the cache of the build steps that call our scripts (`prune_cache`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.delivery.image import labels
from loradock.delivery.image.prune import Entry
from loradock.delivery.image.prune_cache import cache_entries
from loradock.delivery.image.prune_images import Seen, seconds_of, seen

if TYPE_CHECKING:
    from docker import DockerClient

OUR_NAMES = ("loradock", "loradock-*")
STOPPED = {"created", "exited", "dead"}


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Entries of ours, and the storage that something of others holds."""

    entries: list[Entry]
    held_parts: set[str]


def inventory(client: DockerClient, *, names: Sequence[str] = ()) -> Inventory:
    """Read the engine. `names`: further repository names (globs) whose tags are ours to take."""
    usage = client.api.df()
    images = [image for summary in usage["Images"] or [] if (image := seen(client, summary))]
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
    chains = {chain for image in images if labels.IMAGE not in image.labels for chain in image.parts}
    cache, held_by_others = cache_entries(usage.get("BuildCache") or [], images)
    return Inventory(entries=containers + entries + cache, held_parts=chains | held_by_others)


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
        last_used=max(float(item["Created"]), seconds_of(state["FinishedAt"])),
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
        reason = "built on our image by somebody else"
    elif strangers:
        reason = f"the container {strangers[0]} uses it"
    else:
        reason = f"{foreign[0]} is not a name of ours (--name takes it)" if foreign else ""
    finished = [container.last_used for container in containers if container.id in users]
    entry = Entry(
        kind="image",
        id=image.id,
        name=", ".join(image.tags) or f"{image.id[7:19]} (no name)",
        last_used=max([image.last_used, *finished]),
        parts=image.parts,
        needs=[user for user in users if user in known],
        kept=reason,
    )
    tags = [Entry(kind="tag", id=tag, name=tag, last_used=image.last_used) for tag in ours] if foreign else []
    return [entry] if image.is_derived else [*tags, entry]


def is_our_name(tag: str, names: Collection[str]) -> bool:
    """True where the last part of the repository fits a name: `site:5000/team/loradock:1` is ours."""
    repository = tag.rpartition(":")[0].rpartition("/")[2]
    return any(fnmatch.fnmatchcase(repository, name) for name in names)


def _newest_marked(entries: Sequence[Entry]) -> list[Entry]:
    """The same, the newest image that has a name marked as such."""
    names_kept = [e for e in entries if e.kind == "image" and not e.kept and not e.name.endswith("(no name)")]
    newest = max(names_kept, key=lambda entry: entry.last_used, default=None)
    return [dataclasses.replace(entry, is_newest=True) if entry is newest else entry for entry in entries]


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
