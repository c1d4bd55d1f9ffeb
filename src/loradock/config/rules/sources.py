"""Rules about the rows, where they come from and what is held out."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.config.places import NO_CREDENTIAL, has_credential
from loradock.config.rules.base import KeyProblem, Rule
from loradock.config.rules.hub import is_hub_model
from loradock.config.schema import RunConfig
from loradock.config.sections.data import HUB_PREFIX, SourceConfig, parts_of


def _output_is_a_directory(config: RunConfig) -> Iterator[KeyProblem]:
    if config.output == "-":
        what = "output is a directory, and - means standard output elsewhere"
        yield KeyProblem(keys=("output",), what=what, hint="--output ./- is one that is called -")


def _hub_ids_are_well_formed(config: RunConfig) -> Iterator[KeyProblem]:
    name = config.model.name
    if is_hub_model(name) and "@" in name:
        what = f"model.name {name} is not a local directory, and a hub id holds no commit"
        hint = "--model {} --set model.revision={}".format(*name.split("@", 1))
        yield KeyProblem(keys=("model.name", "model.revision"), what=what, hint=hint)
    for index, source in enumerate(config.data.sources):
        if not source.path.startswith(HUB_PREFIX):
            continue
        key, name = f"data.sources.{index}", parts_of(source.path)["path"].removeprefix(HUB_PREFIX)
        if name.count("/") != 1 or not all(name.split("/")):
            what = f"{key}.path {source.path} names no hub data set"
            yield KeyProblem(keys=(f"{key}.path",), what=what, hint="write hub:OWNER/NAME")


def _source_paths_and_keys_agree(config: RunConfig) -> Iterator[KeyProblem]:
    for index, source in enumerate(config.data.sources):
        key = f"data.sources.{index}"
        for name, value in source.contradictions.items():
            what = f"{key}.path {source.path} names {name} {value}, and {key}.{name} says {getattr(source, name)}"
            hint = f"say it once: --set {key}.path={parts_of(source.path)['path']}"
            yield KeyProblem(keys=(f"{key}.path", f"{key}.{name}"), what=what, hint=hint)


def _overlap_leaves_room(config: RunConfig) -> Iterator[KeyProblem]:
    overlap, length = config.data.overlap, config.data.max_length
    if length != "auto" and overlap and overlap >= length:
        what = f"data.overlap {overlap} leaves nothing to learn in windows of {length} tokens (data.max_length)"
        yield KeyProblem(keys=("data.overlap", "data.max_length"), what=what, hint=f"--set data.overlap={length // 8}")


def _addresses_hold_no_credential(config: RunConfig) -> Iterator[KeyProblem]:
    paths = {f"data.sources.{index}.path": source.path for index, source in enumerate(config.data.sources)}
    paths |= {f"data.validation.{part}".rstrip("."): path for part, path in config.data.validation_files.items()}
    for key, path in paths.items():
        if has_credential(path):
            what = f"{key}: the address holds a credential, and addresses are shown and recorded"
            yield KeyProblem(keys=(key,), what=what, hint=NO_CREDENTIAL)


def _held_out_hub_data_have_a_commit(config: RunConfig) -> Iterator[KeyProblem]:
    commits = {source.path: source.revision for source in config.data.sources}
    for part, path in config.data.validation_files.items():
        key, source = f"data.validation.{part}".rstrip("."), SourceConfig(path=path)
        if path.startswith(HUB_PREFIX) and not source.revision:
            commit = commits.get(source.path) or "COMMIT"
            inside = f"{source.configuration}/{source.split}" if source.configuration else source.split
            hint = f"--set {key}={source.path}@{commit}#{inside if '#' in path else 'validation'}"
            yield KeyProblem(keys=(key,), what=f"{key}: {path} needs a commit", hint=hint)


def _sources_are_distinct(config: RunConfig) -> Iterator[KeyProblem]:
    seen: dict[object, int] = {}
    for index, source in enumerate(config.data.sources):
        part = (source.path, source.configuration, source.split, source.revision, source.format)
        first = seen.setdefault(part, index)
        if first != index and source.path:
            what = f"data.sources.{index} repeats data.sources.{first}: rows could be both trained on and held out"
            hint = f"name it once, with weight: 2 (--set data.sources.{first}.weight=2)"
            yield KeyProblem(keys=(f"data.sources.{index}.path",), what=what, hint=hint)


RULES: tuple[Rule, ...] = (
    _output_is_a_directory,
    _hub_ids_are_well_formed,
    _source_paths_and_keys_agree,
    _overlap_leaves_room,
    _addresses_hold_no_credential,
    _held_out_hub_data_have_a_commit,
    _sources_are_distinct,
)
