"""Where a run stands: new, to be continued, or finished; and with which configuration it may be continued."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from loradock.catalog import engines
from loradock.config.load import Loaded, leaves
from loradock.config.schema import RunConfig
from loradock.data.read import digest, other_files
from loradock.data.sources import held_out_files
from loradock.errors import HubError, InputMissing, NoCheckpoint, NotWritable, Problem, StorageError
from loradock.files import regular, sidecar
from loradock.plan.plan import HELD
from loradock.training.run_dir import fingerprint
from loradock.training.run_dir import identity as run_identity
from loradock.training.run_dir import paths as directories
from loradock.training.run_dir import recorded as records
from loradock.training.run_dir.paths import ADAPTER, CHECKPOINTS, METRICS, RECORD
from loradock.training.run_dir.recorded import read

State = Literal["new", "unfinished", "finished"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What was found: `directory` is None where a new one has to be made, `record` is the run's where there is one.

    `damage`: what is wrong with the adapter of a run that was finished, and is exported again.
    """

    state: State
    directory: Path | None
    record: dict[str, Any]
    damage: tuple[str, ...] = ()


EXPORTED = "adapter_sha256"
"""Of run.json: what `exported` found at the end of the run."""
REWRITTEN = (".md", ".png")
"""Of version 0.1.0."""
NEW = Standing(state="new", directory=None, record={})
ASKED = ("config", "fingerprint", "base", "data", "working_directory")
"""Of run.json: what a run is compared by when it is continued, and what it was about."""


def look(loaded: Loaded, *, parent: Path | None, name: str, must_exist: bool, allowed: Collection[str]) -> Standing:
    """Where the run stands that this configuration asks for.

    A directory that the user named (`parent` None: config.output) holds that run, or none: NoCheckpoint names what
    differs, once a step of it was made. Of the numbered directories below `parent` the last one of the same run is
    continued where it is unfinished. A finished run with an allowed change is unfinished: it may have more to do. A
    finished one whose rows are others now is NoCheckpoint; an unfinished one is compared once they are prepared.
    Raises UsageError where other things lie in the directory, StorageError where run.json cannot be read.
    """
    if parent is None:
        directory = Path(loaded.config.output or "")
        if not directories.holds_run(directory):
            if must_exist:
                raise NoCheckpoint(f"there is no run in {directory}", hint="leave out --resume to start one")
            return Standing(state="new", directory=directory, record={})
        standing = standing_of(directory)
        if not has_begun(standing):
            return standing
        changes = same(loaded.config, standing.record, allowed=allowed, directory=directory)
        if changes:
            return replace(standing, state="unfinished")
        if standing.state == "finished":
            check_rows(loaded.config, standing.record, directory)
            if damage := tuple(damaged(standing.record, directory / ADAPTER)):
                return replace(standing, state="unfinished", damage=damage)
        return standing
    for last in directories.numbered_before(parent, name):
        try:
            standing = standing_of(last)
            changes = same(loaded.config, standing.record, allowed=allowed, directory=last)
        except (NoCheckpoint, StorageError, NotWritable):  # another run, or none; the one before it may be this one
            continue
        return standing if standing.state == "unfinished" or changes else NEW
    return NEW


def standing_of(directory: Path) -> Standing:
    """How the run in a directory stands. Finished is one whose record says so and whose adapter is there."""
    record = read(directory)
    is_finished = record.get("status") == "finished" and (directory / "adapter").is_dir()
    return Standing(state="finished" if is_finished else "unfinished", directory=directory, record=record)


def has_begun(standing: Standing) -> bool:
    """True where a step of the run was made. One that failed before may be asked anew: there is nothing to continue."""
    directory = standing.directory or Path()
    metrics = directory / METRICS
    has_lines = metrics.exists() and metrics.stat().st_size > 0
    return standing.state == "finished" or has_lines or any((directory / CHECKPOINTS).glob("*"))


def taken_up(directory: Path) -> Standing:
    """How the run stands that is about to be continued; one that has not begun is what is asked of it now."""
    standing = standing_of(directory)
    if has_begun(standing):
        return standing
    return replace(standing, record={name: value for name, value in standing.record.items() if name not in ASKED})


def damaged(record: Mapping[str, Any], adapter: Path) -> Iterator[str]:
    """What of the exported files is gone, cannot be read, or is not what the run wrote."""
    for name, digest_then in record.get(EXPORTED, {}).items():
        file = adapter / name
        try:
            with regular.opened(file) as stream:
                is_same = hashlib.file_digest(stream, "sha256").hexdigest() == digest_then
        except OSError as error:
            yield f"{file}: {(error.strerror or str(error)).lower()}"
        else:
            if not is_same:
                yield f"{file} is not what the run wrote"


def exported(adapter: Path) -> dict[str, str]:
    """sha256 by name of what answers depend on; the card and the curve may be written again."""
    found: dict[str, str] = {}
    for file in sorted(adapter.iterdir()):
        if file.is_file() and file.suffix not in REWRITTEN:
            with regular.opened(file) as stream:
                found[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def same(
    config: RunConfig, record: Mapping[str, Any], *, allowed: Collection[str], directory: Path
) -> dict[str, dict[str, str]]:
    """The allowed changes to the recorded configuration. NoCheckpoint (83) with every key that differs besides."""
    asked = fingerprint.of_config(as_trained(record, directory))
    found = {key: text for key, text in record.get("fingerprint", {}).items() if key not in asked}
    return run_identity.check(
        {**found, **asked}, {**found, **fingerprint.of_config(config)}, allowed=allowed, directory=directory
    )


def check_rows(config: RunConfig, record: Mapping[str, Any], directory: Path) -> None:
    """NoCheckpoint where the files that are named hold other rows than the run was trained on; gone ones hold none."""
    trained = record.get("data") or {}
    asked = {"sources": config.data.sources, "validation_sources": held_out_files(config.data)}
    differ: list[Problem] = []
    for key, sources in asked.items():
        before = [each["sha256"] for each in trained.get(key, [])]
        with suppress(InputMissing, HubError):
            if before and before != [digest(source) for source in sources]:
                differ.append(Problem(what=f"{', '.join(source.path for source in sources)} changed"))
                differ += [Problem(what=line) for line in other_files(sources, trained[key])]
    if differ:
        what = f"the run in {directory} is finished, and was trained and evaluated on other rows"
        raise NoCheckpoint(what, hint="--fresh or another --output starts a new run", problems=differ)


def recorded(directory: Path) -> Loaded:
    """The configuration of the run in `directory`, as run.json keeps it. NoCheckpoint where there is no run."""
    if not (directory / RECORD).exists():
        raise NoCheckpoint(f"there is no run in {directory}", hint="leave out --resume to start one")
    config = recorded_config(read(directory), directory)
    return Loaded(config=config, origins={key: str(directory / RECORD) for key in leaves(config)}, warnings=())


def recorded_config(record: Mapping[str, Any], directory: Path) -> RunConfig:
    """The configuration in a record, without trust in a model's code: a person gives that, no file does.

    NoCheckpoint for an engine of before, StorageError where it is none.
    """
    config = as_trained(record, directory)
    return config.model_copy(update={"model": config.model.model_copy(update={"trust_remote_code": None})})


def as_trained(record: Mapping[str, Any], directory: Path) -> RunConfig:
    """The configuration in a record, to compare with or to tell, not to act on. Raises as `recorded_config`."""
    engine = (record.get("config") or {}).get("engine")
    if successor := engines.formerly(engine):
        what = f"the run in {directory} was begun with engine {engine}, which engine {successor.name} has replaced"
        raise NoCheckpoint(what, hint="--fresh or another --output starts a new run beside it")
    file = directory / RECORD
    what = f"{file} holds no configuration of this version"
    if record.get("config") is None:
        problem = Problem(what="config is missing", file=str(file))
        raise StorageError(what, hint=records.HINT, problems=[problem])
    try:
        return RunConfig.model_validate(_with_text_unit(record["config"]))
    except ValidationError as error:
        raise StorageError(what, hint=records.HINT, problems=sidecar.wrong(error, file, "config")) from error


def _with_text_unit(config: Any) -> Any:
    """A recorded configuration; one from before `data.text` read text files by lines."""
    if not isinstance(config, dict) or not isinstance(config.get("data"), dict):
        return config
    return {**config, "data": {"text": fingerprint.LATER_KEYS["data.text"], **config["data"]}}


def held(config: RunConfig, before: Mapping[str, Any], *, asked_anew: Collection[str]) -> tuple[RunConfig, list[str]]:
    """The configuration with what the run decided when it began, where it asks for nothing else; and which that is.

    A continued run must not compute otherwise because it now has another GPU, or less memory free. A micro-batch that
    was halved out of GPU memory stays halved, unless `asked_anew` (allowed changes) names it.
    """
    content = config.model_dump()
    names: list[str] = []
    if engines.formerly(before.get("engine")):  # the fingerprint refuses it by name
        before = {name: value for name, value in before.items() if name != "engine"}
    for name, (*path, key) in HELD.items():
        section = content
        for part in path:
            section = section[part]
        is_free = section[key] == "auto" or (name == "micro_batch" and "train.micro_batch" not in asked_anew)
        if name in before and is_free and section[key] != before[name]:
            section[key] = before[name]
            names.append(name)
    try:
        return RunConfig.model_validate(content), names
    except ValidationError as error:
        what = "what the checkpoint's run decided is nothing that this version knows"
        problems = [Problem(what=f"{'.'.join(map(str, each['loc']))}: {each['msg']}") for each in error.errors()]
        raise NoCheckpoint(what, hint="--fresh or another --output starts a new run", problems=problems) from error
