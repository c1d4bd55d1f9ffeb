"""What a configuration names on a hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loradock.config.rules.base import KeyProblem
from loradock.config.schema import RunConfig
from loradock.config.sections.data import HUB_PREFIX
from loradock.files import nearby

HubKind = Literal["models", "datasets"]


def is_hub_model(name: str) -> bool:
    """True where a model name is a hub id (OWNER/NAME) and no local path."""
    return name.count("/") == 1 and not name.startswith((".", "/")) and not Path(name).exists()


@dataclass(frozen=True, kw_only=True)
class HubId:
    """What is named on a hub: `name_key` is the dotted key of the name, `key` that of `commit`, if it has one."""

    kind: HubKind
    name: str
    name_key: str
    key: str
    commit: str | None

    @property
    def subject(self) -> str:
        """What needs a commit, for messages."""
        if self.kind == "models":
            return f"model.name {self.name} is not a local directory, and as a hub id it"
        return f"{self.name_key.removesuffix('.path')}: the hub data set {self.name}"

    @property
    def problem(self) -> KeyProblem:
        """Where nobody may ask the hub."""
        hint = f"--set {self.key}=COMMIT, which `hf {self.kind} info {self.name} --expand sha` prints"
        what = f"{self.subject} needs a commit"
        return KeyProblem(keys=(self.name_key, self.key), what=what, hint=hint + self.or_directory)

    @property
    def or_directory(self) -> str:
        """What may be meant in its place, behind a hint: a directory that is called nearly so; none of a data set."""
        if self.kind != "models":
            return ""
        near = nearby.sibling(Path(self.name))
        is_near = near is not None and near.is_dir()
        return f", or {near}, a directory here" if is_near else f", or ./{self.name} for the path of a directory"


def hub_ids(config: RunConfig) -> Iterator[HubId]:
    """What a configuration names on a hub."""
    base = config.model
    if is_hub_model(base.name):
        key = "model.revision"
        yield HubId(kind="models", name=base.name, name_key="model.name", key=key, commit=base.revision)
    for index, source in enumerate(config.data.sources):
        if source.path.startswith(HUB_PREFIX):
            key, name = f"data.sources.{index}", source.path.removeprefix(HUB_PREFIX)
            keys = {"name_key": f"{key}.path", "key": f"{key}.revision"}
            yield HubId(kind="datasets", name=name, commit=source.revision, **keys)
