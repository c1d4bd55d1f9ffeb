"""Files of the web and of object stores: fetched where a person names them, and kept in the cache by their content.

Each start asks once whether the file is still the one that was fetched (its ETag or time), and fetches it again where
it is not, or where the server cannot say. A run's record has the digest of the content, so another one is noticed.
Of a folder or a pattern of an object store each file is kept as if it were named by itself, and what was listed last
is noted beside them (`remote_folder`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import netrc
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from loradock.config.places import NO_CREDENTIAL, cache_directory, has_credential, written
from loradock.config.sections.data import SourceConfig
from loradock.data.readers.base import CHUNK_BYTES
from loradock.errors import EnvironmentUnfit, HubError, InputMissing, LoradockError, UsageError
from loradock.files import atomic_io, regular, staged
from loradock.files.foreign import said
from loradock.files.system_errors import machine_error, storage_error
from loradock.machine import hub_access
from loradock.text import redact
from loradock.text.amounts import size_text

if TYPE_CHECKING:
    import httpx

PACKAGES = {"s3": ("s3fs", "aws s3 cp {} ."), "gs": ("gcsfs", "gcloud storage cp {} .")}
"""Of object stores: the package that reads them, and what copies a file without it."""
TOOLS = {
    "s3": ("aws s3 ls {}", "aws s3 cp --recursive {} {}"),
    "gs": ("gcloud storage ls {}", "gcloud storage cp --recursive {} {}"),
}
"""Of object stores: what lists a folder, and what copies one to a new folder."""
VALIDATORS = {"etag": "If-None-Match", "last-modified": "If-Modified-Since"}
"""What a web server says of a file's version, and the header that asks for another one."""
VERSION = ("ETag", "etag", "LastModified", "updated", "mtime", "generation", "md5Hash", "size")
"""What object stores say of it."""
DIGITS = 16
EACH_FILE = "name each file: --data URL --data URL; or a folder of an object store (s3://, gs://)"


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A fetched file; `version` is what the server said of it, `former` an earlier copy that holds something else."""

    file: Path
    size_bytes: int
    version: Mapping[str, str]
    former: Path | None = None


def local_file(source: SourceConfig) -> Path:
    """The copy on this machine, fetched first where there is none or the file has changed.

    InputMissing for a file that is not there or that nobody may read, HubError where the server does not answer or the
    network is switched off, EnvironmentUnfit for a package that is missing, and what the cache's disk ends with.
    """
    refuse_credential(source.path)
    return _current(source.path, cache_of(source)).file


def refuse_credential(path: str) -> None:
    """UsageError for an address that holds what nobody else may see."""
    if has_credential(path):
        raise UsageError("an address holds a credential, and addresses are shown and recorded", hint=NO_CREDENTIAL)


def cache_of(source: SourceConfig) -> Path:
    """Where the copies of a source lie."""
    return cache_directory(source.cache) / "remote"


def local_copy(source: SourceConfig) -> Path | None:
    """The copy on this machine, without asking anybody; None where there is none."""
    copy = known(source.path, cache_of(source))
    return copy and copy.file


def notes(source: SourceConfig) -> list[str]:
    """What a person is told of a fetched file: where it lies, and that it is another one than before."""
    copy = _current(source.path, cache_of(source))
    lines = [f"{source.path}: read from {copy.file} ({size_text(copy.size_bytes)})"]
    if copy.former:
        lines.append(f"warning: {source.path} has changed since it was fetched; what it held then is {copy.former}")
    return lines


def address(path: str) -> str:
    """The address without what stands behind the file's name, by which its kind is known."""
    return path.partition("?")[0]


@functools.cache  # a process reads one content from beginning to end
def _current(url: str, folder: Path) -> Copy:
    copy = known(url, folder)
    if switches := hub_access.switches(os.environ):
        if copy:
            return copy
        raise switched_off(url, switches)
    return fetched(url, folder, _by_store if is_store(url) else _by_web)


def switched_off(url: str, switches: Sequence[str]) -> HubError:
    """What to say of an address that is not in the cache where the network is switched off."""
    what = f"{url} is not in the cache, and {' or '.join(switches)} switches the network off"
    return HubError(what, hint=f"unset {' '.join(switches)}; or fetch it elsewhere, and name the file")


def is_store(url: str) -> bool:
    """Whether an address is one of an object store."""
    return urlsplit(url).scheme in PACKAGES


def copying(url: str) -> str:
    """The command that copies a folder of a store to this machine."""
    return TOOLS[urlsplit(url).scheme][1].format(shlex.quote(url), shlex.quote(Path(urlsplit(url).path).name or "rows"))


def listing_of(folder: Path) -> str:
    """The command that lists a folder of a store."""
    url = f"{written(folder)}/"
    return TOOLS[urlsplit(url).scheme][0].format(shlex.quote(url))


Fetch = Callable[[str, Path, "Copy | None"], Mapping[str, str] | None]
"""Writes the file of an address to a path, and says which version it is; None where it is the known one."""


def fetched(url: str, folder: Path, fetch: Fetch) -> Copy:
    """The copy of a file, fetched where it is not the one that is known."""
    former = known(url, folder)
    try:
        with staged.in_cache(folder) as place:
            version = fetch(url, place / "content", former)
            if former and version is None:
                return former
            copy = _committed(url, folder, place / "content", version or {})
            return copy if not former or former.file.parent == copy.file.parent else replace(copy, former=former.file)
    except OSError as error:
        raise storage_error(error, folder) from error


def _committed(url: str, folder: Path, content: Path, version: Mapping[str, str]) -> Copy:
    """Move what was fetched to its place, and note which version of the file it is."""
    with regular.opened(content) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    atomic_io.sync_file(content)
    place = folder / digest[:DIGITS]
    place.mkdir(exist_ok=True)
    file = place / (Path(urlsplit(url).path).name or "content")
    content.rename(file)
    atomic_io.sync_folder(place)
    note = {"file": f"{place.name}/{file.name}", "size_bytes": file.stat().st_size, "version": dict(version)}
    atomic_io.replace(note_of(url, folder), json.dumps(note))
    return Copy(file=file, size_bytes=note["size_bytes"], version=version)


def note_of(url: str, folder: Path) -> Path:
    """Where is noted what was fetched, or listed, last of an address."""
    return folder / f"{hashlib.sha256(url.encode()).hexdigest()[:DIGITS]}.json"


def known(url: str, folder: Path) -> Copy | None:
    """What was fetched last, where it is still there."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        note = json.loads(regular.read(note_of(url, folder)))
        copy = Copy(file=folder / note["file"], size_bytes=note["size_bytes"], version=dict(note["version"]))
        if copy.file.parent.parent == folder and copy.file.stat().st_size == copy.size_bytes:
            return copy
    return None


def _by_web(url: str, place: Path, known: Copy | None) -> Mapping[str, str] | None:
    """Fetch a file of the web; None where it is the one that is known."""
    hub_access.check(os.environ)
    import httpx

    conditions = {VALIDATORS[name]: value for name, value in (known.version if known else {}).items()}
    headers = {"Accept-Encoding": "identity", **conditions}
    try:
        with httpx.stream(
            "GET", url, headers=headers, auth=_login(), follow_redirects=True, timeout=hub_access.ANSWER_SECONDS
        ) as reply:
            if reply.status_code == httpx.codes.NOT_MODIFIED and known:
                return None
            _check_status(url, reply.status_code)
            with place.open("wb") as file:
                for chunk in reply.iter_raw(CHUNK_BYTES):
                    file.write(chunk)
            return {name: reply.headers[name] for name in VALIDATORS if name in reply.headers}
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HubError(f"{url} was not fetched: {redact.without(said(error), {})}", hint=_away(known)) from error


def _login() -> httpx.Auth | None:
    """The logins of ~/.netrc (NETRC names another file), each for its own host alone; None where there are none."""
    import httpx

    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    if not file.is_file():
        return None
    try:
        return httpx.NetRCAuth(str(file))
    except (netrc.NetrcParseError, OSError) as error:
        why = error.msg if isinstance(error, netrc.NetrcParseError) else error.strerror
        raise InputMissing(f"{file} cannot be read: {why}", hint="correct it, or export NETRC=/dev/null") from error


def _check_status(url: str, status: int) -> None:
    if status in (401, 403):
        raise InputMissing(
            f"{url}: the server refuses it ({status})", hint="put the login into ~/.netrc, or copy the file"
        )
    if status in (404, 410):
        hint = f"check the address: curl -sSIL {shlex.quote(address(url))}"
        if "*" in address(url):
            hint = f"a web server has no list of the files of a folder: {EACH_FILE}"
        raise InputMissing(f"{url} is not there ({status})", hint=hint)
    if status >= 300:
        raise HubError(f"{url} was not fetched: the server answers {status}", hint="try again later, or copy the file")


def _by_store(url: str, place: Path, known: Copy | None) -> Mapping[str, str] | None:
    """Fetch a file of an object store by fsspec, which finds credentials as the store's own tools do."""
    with asking(url, known):
        store, path = opened_store(url)
        version = version_of(store.info(path))
        if known and is_same(known.version, version):
            return None
        store.get_file(path, str(place))
        return version


def opened_store(url: str) -> tuple[Any, str]:
    """The store of an address as fsspec has it, with nothing remembered, and the address without its protocol."""
    import fsspec

    package, copying = PACKAGES[urlsplit(url).scheme]
    try:
        store, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        hint = f"pip install {package}, into your own environment; or {copying.format(url)}, and name the file"
        raise EnvironmentUnfit(f"{url} needs the package {package}, which is not installed", hint=hint) from error
    store.invalidate_cache()
    return store, path


def version_of(info: Mapping[str, Any]) -> dict[str, str]:
    """What a store says of a file's version."""
    return {name: str(info[name]) for name in VERSION if info.get(name) is not None}


def is_same(former: Mapping[str, str], current: Mapping[str, str]) -> bool:
    """Whether two versions are one; a size alone does not tell."""
    return bool(current.keys() - {"size"}) and dict(former) == dict(current)


@contextmanager
def asking(url: str, known: Copy | None = None) -> Iterator[None]:
    """Inside, a store is asked; what its library ends with comes out as an error of ours, without its secrets."""
    try:
        yield
    except LoradockError:
        raise
    except FileNotFoundError as error:
        raise InputMissing(f"{url} is not there", hint="check the address and the access rights") from error
    except PermissionError as error:
        what = f"{url}: the store refuses it ({redact.without(said(error), redact.of(os.environ))})"
        raise InputMissing(what, hint="log in as the store's own tools do, or copy the file") from error
    except Exception as error:  # each store's library has exceptions of its own
        if failed := machine_error(error):
            raise failed from error
        text = redact.without(said(error), redact.of(os.environ))
        raise HubError(f"{url} was not fetched: {text}", hint=_away(known)) from error


def _away(known: Copy | None) -> str:
    copy_hint = "; HF_HUB_OFFLINE=1 takes the copy in the cache" if known else ""
    return f"check the network and its proxy{copy_hint}"
