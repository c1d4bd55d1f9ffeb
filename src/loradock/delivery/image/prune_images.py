"""Images as an engine tells them, layer by layer: whether one is ours, and whether somebody built on it."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.delivery.image import labels

if TYPE_CHECKING:
    from docker import DockerClient

WITHOUT_LAYER = re.compile(
    r"(?:/bin/sh -c #\(nop\) +)?"
    r"(?:ARG|CMD|ENTRYPOINT|ENV|EXPOSE|HEALTHCHECK|LABEL|MAINTAINER|ONBUILD|SHELL|STOPSIGNAL|USER|VOLUME)\b"
)


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


def seen(client: DockerClient, summary: Mapping[str, Any]) -> Seen | None:
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
        last_used=max(seconds_of(attrs["Created"]), seconds_of(tagged)),
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
    later = history[marks[-1] + 1 :] if marks else []
    return any(step["Size"] and "WORKDIR" not in step["CreatedBy"] for step in later)


def seconds_of(stamp: str) -> float:
    """A time as the engine writes it, in seconds since 1970."""
    return dt.datetime.fromisoformat(stamp).timestamp()
