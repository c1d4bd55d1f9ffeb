"""Where the files of a run lie now: where they were, or where a person or a bundle says; and which are missing."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from loradock import demo
from loradock.analysis.reproduce.original import Original
from loradock.config.rules import is_hub_model
from loradock.config.schema import RunConfig
from loradock.config.sections.data import HUB_PREFIX, SourceConfig, parts_of
from loradock.data.read import files
from loradock.data.sources import held_out_files
from loradock.errors import InputMissing, LoradockError, Problem, UsageError
from loradock.model import hub_cache
from loradock.training.continued import directory_of

SHIPPED = "/loradock/demo/"
"""Below it lie the base and the rows of the demo."""
TEMPLATE_SUFFIXES = (".jinja", ".j2")
FETCH = "fetch"
"""The option that allows what `is_fetched`."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where base, rows, validation files, templates, first adapter and DeepSpeed's configuration lie; None: not said.

    `data` and `validation` have one place for each file of the run, in its order: a file, or as text the address that
    the run has there. `fetch`: rows that the run took from the web or a hub are fetched from there again.
    """

    model: Path | None = None
    data: tuple[Path | str, ...] = ()
    validation: tuple[Path | str, ...] = ()
    template: Path | None = None
    embedding_template: Path | None = None
    adapter: Path | None = None
    deepspeed: Path | None = None
    fetch: bool = False

    def before(self, other: Self) -> Self:
        """These, and in the place of each that is not said that of another."""
        names = [field.name for field in dataclasses.fields(self)]
        return type(self)(**{name: getattr(self, name) or getattr(other, name) for name in names})


def located(original: Original, places: Places) -> RunConfig:
    """The recorded configuration with the places of now. UsageError where one is named that the run does not have."""
    config, data = original.config, original.config.data
    _require_used(original, places)
    paths = [str(path) for path in places.data] or [_as_found(source.path, original) for source in data.sources]
    sources = tuple(  # what is fetched goes to this user's own cache
        source.model_copy(update={"path": path}).with_text_unit(data.text)
        for source, path in zip(data.sources, paths, strict=True)
    )
    update: dict[str, Any] = {"sources": sources, "validation": _validation(original, places)}
    update["template"] = _file(data.template, places.template, original)
    embedding = config.embedding.model_copy(
        update={"template": _file(config.embedding.template, places.embedding_template, original)}
    )
    adapter, deepspeed = config.lora.adapter, config.train.deepspeed
    adapter = adapter and str(places.adapter or _as_found(adapter, original))
    deepspeed = deepspeed and str(places.deepspeed or _as_found(deepspeed, original))
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=_base(original, places)),
            "data": data.model_copy(update=update),
            "embedding": embedding,
            "lora": config.lora.model_copy(update={"adapter": adapter}),
            "train": config.train.model_copy(update={"deepspeed": deepspeed}),
        }
    )


def _base(original: Original, places: Places) -> dict[str, Any]:
    """A base of a hub is taken from where it was found, else from this user's cache, so that no hub is asked."""
    model, recorded = original.config.model, original.record["base"]
    name = model.name
    if places.model:
        return {"name": str(places.model), "revision": None}
    if is_hub_model(name):
        fetched = hub_cache.directory_of(name, recorded.get("revision"), environ=os.environ)
        was = Path(recorded["path"])
        return {"name": str(fetched or was) if not os.path.isdir(was) else str(was), "revision": None}
    return {"name": _as_found(name, original)}


def _validation(original: Original, places: Places) -> Any:
    held_out = original.config.data.validation_files
    if not held_out:
        return original.config.data.validation
    splits = [parts_of(path).get("split") for path in held_out.values()]
    paths = [  # an address has its split
        f"{place}#{split}" if split and isinstance(place, Path) else str(place)
        for place, split in zip(places.validation, splits, strict=False)
    ]
    files_by_set = dict(zip(held_out, paths or [_as_found(path, original) for path in held_out.values()], strict=True))
    return files_by_set[""] if [*files_by_set] == [""] else files_by_set


def _file(was: str, place: Path | None, original: Original) -> str:
    """A template: a name stays, a file is where it lies now."""
    return str(place or _as_found(was, original)) if was.endswith(TEMPLATE_SUFFIXES) else was


def _as_found(path: str, original: Original) -> str:
    """A relative path starts where the run was started, if it is there; else where this command is.

    The demo's files lie in every installation.
    """
    if is_shipped(path) and not os.path.exists(path):
        shipped = Path(demo.__file__).parent / path.rpartition(SHIPPED)[2]
        return str(shipped) if shipped.exists() else path
    directory = original.record.get("working_directory")
    if not directory or os.path.isabs(path) or is_fetched(path):
        return path
    from_there = os.path.join(directory, path)
    is_there = os.path.exists(from_there) or (os.path.isdir(os.path.dirname(from_there)) and not os.path.exists(path))
    return from_there if is_there else path


def is_shipped(path: str) -> bool:
    """Whether a path is that of a file of the demo, in whatever installation."""
    return path.startswith(os.sep) and SHIPPED in path


def is_fetched(path: str) -> bool:
    """Whether rows at a path would come over the network: an address, or a data set of a hub."""
    return "://" in path or path.startswith(HUB_PREFIX)


def _require_used(original: Original, places: Places) -> None:
    config = original.config
    rows: list[str] = []
    for name in ("data", "validation"):
        recorded, given = paths_of(config)[name], [str(place) for place in getattr(places, name)]
        if len(given) not in (0, len(recorded)):
            what = f"--{name} was given {len(given)} times, and the run has {len(recorded)} of such files"
            raise UsageError(what, hint=shlex.join(_given(f"--{name}", recorded)) or f"leave out --{name}")
        for path, was in zip(given, recorded, strict=False):
            if is_fetched(path) and path != was:
                what = f"--{name} {path}: an address stands for the recorded one, and the run has {was} there"
                raise UsageError(what, hint=f"fetch it, and give the file: --{name} FILE")
        rows += given or recorded
    has_file = {
        "template": config.data.template.endswith(TEMPLATE_SUFFIXES),
        "embedding_template": config.embedding.template.endswith(TEMPLATE_SUFFIXES),
        "adapter": config.lora.adapter is not None,
        "deepspeed": config.train.deepspeed is not None,
    }
    if places.fetch and not any(map(is_fetched, rows)):
        raise UsageError(f"--{FETCH} has no effect: no rows are at an address", hint=f"leave out --{FETCH}")
    for name, is_used in has_file.items():
        if getattr(places, name) and not is_used:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} has no effect: the run has no such file", hint=f"leave out {option}")


def paths_of(config: RunConfig) -> Mapping[str, Sequence[str]]:
    """The paths of a configuration by the name of their option."""
    paths_by_option = {
        "model": [config.model.name],
        "data": [source.path for source in config.data.sources],
        "validation": [*config.data.validation_files.values()],
        "template": [config.data.template],
        "embedding-template": [config.embedding.template],
        "adapter": [config.lora.adapter or ""],
        "deepspeed": [config.train.deepspeed or ""],
    }
    return {
        name: [path for path in paths if path and ("template" not in name or path.endswith(TEMPLATE_SUFFIXES))]
        for name, paths in paths_by_option.items()
    }


def require(original: Original, config: RunConfig, *, fetches: bool = False) -> None:
    """InputMissing with everything of a located configuration that is not here, and the very options to give.

    `fetches`: what lies at an address may be fetched.
    """
    problems: list[Problem] = []
    options: list[str] = []
    paths = paths_of(config)
    for name, problem in missing(original, config, fetches=fetches):
        problems.append(problem)
        if name == FETCH:
            options += [] if f"--{FETCH}" in options else [f"--{FETCH}"]
        elif f"--{name}" not in options:
            stays = {path for path in paths[name] if is_fetched(path) or os.path.exists(path)}
            values = [shlex.quote(path) if path in stays else _KINDS.get(name, "FILE") for path in paths[name]]
            options += _given(f"--{name}", values)
    if problems:
        raise InputMissing("what the run was made of is not here", hint=f"add {' '.join(options)}", problems=problems)


_KINDS = {"model": "DIR", "adapter": "DIR"}


def _given(option: str, values: Sequence[str]) -> list[str]:
    return [text for value in values for text in (option, value)]


def missing(original: Original, config: RunConfig, *, fetches: bool = False) -> Iterator[tuple[str, Problem]]:
    """(name of its option, problem) of each input that is not where the configuration says."""
    record, recorded = original.record, original.record["fingerprint"]
    yield from (("model", problem) for problem in _missing_base(original, config))
    data = record.get("data") or {}
    sources_by_option = {"data": config.data.sources, "validation": held_out_files(config.data)}
    recorded_sources = {"data": data.get("sources", []), "validation": data.get("validation_sources", [])}
    for name, sources in sources_by_option.items():
        for index, source in enumerate(sources):
            digests = [each["sha256"] for each in recorded_sources[name]]
            hint = f"sha256 {digests[index]}" if index < len(digests) else None
            if is_fetched(source.path) and not fetches:
                what = f"rows come from the web ({source.path}): an address that only a record names is not fetched"
                yield FETCH, Problem(what=what, hint=hint)
            elif not is_fetched(source.path) and (what := _missing_rows(source)):
                yield name, Problem(what=what, hint=hint)
    templates = {"template": config.data.template, "embedding-template": config.embedding.template}
    digests = {
        "template": recorded.get("data.template.content"),
        "embedding-template": data.get("embedding_template_sha256"),
    }
    for name, path in templates.items():
        if path.endswith(TEMPLATE_SUFFIXES) and not os.path.isfile(path):
            hint = f"sha256 {digests[name]}" if digests[name] else None
            yield name, Problem(what=f"the template is not at {path}", hint=hint)
    if config.lora.adapter:
        try:
            directory_of(config.lora.adapter)
        except InputMissing as error:
            digest = recorded.get("lora.adapter.content")
            yield "adapter", Problem(what=error.what, hint=f"sha256 {digest}, of its name, size and weights")
    if (path := config.train.deepspeed) and not os.path.isfile(path):
        yield "deepspeed", Problem(what=f"train.deepspeed is not at {path}")


def _missing_base(original: Original, config: RunConfig) -> Iterator[Problem]:
    base = original.record.get("base") or {}
    directory, name = Path(config.model.name), base.get("name")
    if not os.path.isfile(directory / "config.json"):
        revision = base.get("revision")
        hint = f"hf download {shlex.quote(str(name))} --revision {revision}" if revision else None
        yield Problem(what=f"the base is not at {directory} ({name})", hint=hint)
        return
    absent = [
        str(directory / weights) for weights in base.get("weights", []) if not os.path.isfile(directory / weights)
    ]
    if absent:
        yield Problem(what=f"weights of the base are not there: {', '.join(absent)}")


def _missing_rows(source: SourceConfig) -> str | None:
    try:
        files(source)
    except LoradockError as error:
        return error.what
    return None
