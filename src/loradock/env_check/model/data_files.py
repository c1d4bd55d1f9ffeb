"""Data: each source, the validation file and the template are there, can be read, and begin with a row."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from loradock.config.places import is_remote
from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.model.refusal import one_line
from loradock.env_check.remedies import from_hint, train_with
from loradock.errors import ConfigError, DataError, HubError, LoradockError, shown_place
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model import hub_cache
from loradock.text.suggest import named_by

if TYPE_CHECKING:
    from loradock.config.sections.data import SourceConfig

HUB_DATA = "hub:"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The first row of each text file; of Parquet, arrow and the hub, that they are there."""
    assert plan.config is not None
    from loradock.data.sources import held_out_files

    data = plan.config.data
    sources = {f"data.sources.{index}.path": source for index, source in enumerate(data.sources)}
    for name, source in zip(data.validation_files, held_out_files(data), strict=True):
        sources[f"data.validation.{name}".rstrip(".")] = source
    findings = [finding for key, source in sources.items() for finding in of_source(host, key, source)]
    findings += of_template(data.template)
    return findings or [ok(f"{len(sources)} sources can be read")]


def of_source(host: Host, key: str, source: SourceConfig) -> Iterator[Finding]:
    """What is wrong with one source, at most one thing."""
    if source.path.startswith(HUB_DATA):
        yield from of_hub(host, source)
        return
    if is_remote(source.path):  # fetched where it is read: no check has the time
        return
    from loradock.data.read import files, place_of, read, shown_files
    from loradock.data.readers import reader_of
    from loradock.data.remedies import mending

    try:
        paths = files(source)
        reader = reader_of(paths[0].name)
        starts: list[int] = []
        rows = read(source, starts=starts) if reader is None or reader[0].is_text else None
        record = None
        if rows is not None:
            with closing(rows):
                record = next(rows)
    except LoradockError as wrong:
        yield error(one_line(wrong.what), remedy=_remedy(key, wrong), ends=type(wrong))
        return
    if record is not None and record.problem:
        file, line = place_of(shown_files(source), starts, record.line)
        show = f"{f'sed -n {line}p' if line and line > 0 else 'ls -l'} {shlex.quote(str(paths[0]))}"
        what = f"{shown_place(file, line)}: {one_line(record.problem)}"
        yield error(what, remedy=mending(file, record.problem) or show, ends=DataError)


def _remedy(key: str, wrong: LoradockError) -> str:
    """The hint of the data room where it is a command, else the key with what it suggests."""
    hint = one_line(wrong.hint or "")
    hub = "for a hub data set write "
    if path := named_by(hint) or (hint.removeprefix(hub) if hint.startswith(hub) else None):
        return train_with(f"{key}={path}")
    return hint if hint.startswith("ls ") else train_with(f"{key}=FILE")


def of_hub(host: Host, source: SourceConfig) -> Iterator[Finding]:
    """A data set of the hub: in a cache of this machine, or there when asked."""
    name, revision = source.path.removeprefix(HUB_DATA), source.revision or "main"
    environ = host.environ
    prepared = hub_cache.prepared_commits(name, environ=environ)
    if revision in prepared:
        return
    part = f", {source.configuration!r}" if source.configuration else ""
    load = shlex.quote(f"import datasets; datasets.load_dataset({name!r}{part}, revision={revision!r})")
    fetch = f"env HF_HUB_OFFLINE=0 HF_DATASETS_OFFLINE=0 python -c {load}"
    if hub_cache.datasets_are_offline(environ):
        if prepared:
            what = (
                f"the data set {name} is here at another revision than {revision}, and the hub is switched "
                "off (offline mode)"
            )
            yield warning(what, remedy=fetch)
            return
        what = f"the data set {name} is not in the cache, and the hub is switched off (offline mode)"
        yield error(what, remedy=fetch, ends=HubError)
        return
    url = host.hub_url(f"datasets/{name}/resolve/{revision}/README.md")
    status, reason = host.hub_answer(url, token=hub_cache.token(host))
    if status is None:
        yield warning(f"the data set {name}: the hub cannot be reached", remedy=f"curl -sSIL {url}")
    elif status in (401, 403):
        what = f"the hub refuses the data set {name} ({status}): it is gated, private, or misspelt"
        yield error(what, remedy="hf auth login", ends=HubError)
    elif status == 404 and reason != "EntryNotFound":
        what = f"the hub has no data set {name} at {revision}"
        yield error(what, remedy=f"hf datasets info {name}", ends=HubError)


def of_template(template: str) -> Iterator[Finding]:
    """A template that is named is one of ours, or a file that can be read."""
    from loradock.data.templates import Brought, resolve

    try:
        resolve(template, own=Brought(text="the tokenizer's"))
    except ConfigError as wrong:
        yield error(
            one_line(wrong.what), remedy=from_hint(wrong.hint) or train_with("data.template=auto"), ends=ConfigError
        )
    except LoradockError as wrong:
        what = f"data.template: {template} cannot be read as UTF-8 text"
        yield error(what, remedy=f"ls -l {shlex.quote(template)}", ends=type(wrong))


CHECK = Check(
    name="data-files",
    group="model",
    proves="Each source, the validation file and the template exist, can be read, and start with a row.",
    look=look,
    needs="config",
    limit_seconds=15,
)
