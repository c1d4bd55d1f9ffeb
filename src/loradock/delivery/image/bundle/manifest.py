"""The manifest of a bundle: every member with its size and sha256. Its sha256 stands for the whole bundle."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loradock.errors import DataError
from loradock.files import foreign_json

FORMAT = "loradock.delivery.image.bundle/1"
NAME = "manifest.json"
IMAGE, LOCK, MODEL, DATA, RUN = "image", "lock", "model", "data", "run"
PARTS = (IMAGE, LOCK, MODEL, DATA, RUN)
IMAGE_MEMBER, LOCK_MEMBER = f"{IMAGE}/image.tar", f"{LOCK}/requirements.lock"
LONGEST_BYTES = 64 << 20
SHA256 = re.compile(r"[0-9a-f]{64}")
MADE_BY = "loradock bundle create makes it again"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file of the bundle, by its path in it."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a bundle holds. `image` is the reference that it was saved by, with `image_id`, the engine's name for it."""

    loradock: str
    members: tuple[Member, ...]
    image: str | None = None
    image_id: str | None = None

    @property
    def content(self) -> bytes:
        """The text of the member `manifest.json`, with its own sha256; the same for the same members."""
        return _text({**self._body, "sha256": self.sha256})

    @property
    def sha256(self) -> str:
        """Of the content without this line: a bit that flips in the manifest shows too."""
        return hashlib.sha256(_text(self._body)).hexdigest()

    @property
    def digest(self) -> str:
        """`sha256:...`: what stands for the whole bundle."""
        return f"sha256:{self.sha256}"

    @property
    def _body(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @property
    def size_bytes(self) -> int:
        """All members together."""
        return sum(member.size_bytes for member in self.members)

    def of_part(self, part: str) -> tuple[Member, ...]:
        """The members of image, lock, model, data or run."""
        return tuple(member for member in self.members if member.path.startswith(f"{part}/"))


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def read(content: bytes, *, file: str) -> Manifest:
    """From the text of a member; DataError where it is none of ours, or is not exactly what this loradock writes."""
    try:
        document = foreign_json.loads(content)
        if document["format"] != FORMAT:
            raise DataError(
                f"{file}: its format is {document['format']!r}, and this loradock reads {FORMAT!r}",
                hint="use the loradock that made the bundle",
            )
        manifest_read = Manifest(
            loradock=str(document["loradock"]),
            members=tuple(map(_member, document["members"])),
            image=document["image"],
            image_id=document["image_id"],
        )
    except (ValueError, KeyError, TypeError) as failure:
        raise DataError(f"{file}: its manifest is damaged: {failure}", hint=MADE_BY) from failure
    if manifest_read.content != content:
        raise DataError(f"{file}: its manifest is damaged: its own sha256 differs", hint=MADE_BY)
    return manifest_read


def _member(entry: Mapping[str, Any]) -> Member:
    member = Member(path=str(entry["path"]), size_bytes=int(entry["size_bytes"]), sha256=str(entry["sha256"]))
    if escape := escapes(member.path):
        raise ValueError(escape)
    if member.size_bytes < 0 or not SHA256.fullmatch(member.sha256):
        raise ValueError(f"{member.path!r} has no size and sha256")
    return member


def _is_text(path: str) -> bool:
    try:
        return bool(path.encode())
    except UnicodeEncodeError:
        return False


def escapes(path: str) -> str | None:
    """Why a path may not be a member: it leads elsewhere, or into no part of a bundle; None where it may."""
    parts = path.split("/")
    if not _is_text(path):
        return f"{path!r} is not UTF-8"
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        return f"{path!r} leads out of the bundle"
    if path != NAME and (len(parts) < 2 or parts[0] not in PARTS):
        return f"{path!r} is in no part of a bundle ({', '.join(PARTS)})"
    return None
