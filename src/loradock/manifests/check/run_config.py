"""Rules on the configuration that a container gives to loradock: where it lies, what it says, how long it is silent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from loradock.config.load import SHORTCUTS, Loaded, load
from loradock.config.scalars import scalar
from loradock.config.schema import LimitsConfig
from loradock.errors import ConfigError, Problem
from loradock.manifests.check.base import TRAINER, Manifest, Pod, Rule, runs_loradock
from loradock.manifests.check.command_line import option, values, words
from loradock.manifests.check.fields import Field, Found, shown

HEARTBEAT_LIMIT, HEARTBEAT_LIMIT_SECONDS = "LORADOCK_HEARTBEAT_LIMIT", 3900
_YAML = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a container trains by lies in the volume of a ConfigMap; `key` is empty where that has no such file."""

    container: Field
    word: Field
    config_map: Manifest
    key: str

    @property
    def text(self) -> Field:
        """The configuration."""
        return self.config_map.root["data"][self.key]


def _file(container: Field) -> Field | None:
    """The configuration that `train` is given, as an absolute path; None where there is none, or nobody knows."""
    line = words(container) if runs_loradock(container) else []
    starts = [index for index, word in enumerate(line) if word.text == "train"]
    rest = line[starts[0] + 1 :] if starts else []
    named = (word for word in rest if word.text.endswith(_YAML) and not word.text.startswith("-"))
    for word in named:
        path = PurePosixPath(container["workingDir"].text, word.text)
        return Field(str(path), word.path) if path.is_absolute() and "$" not in word.text else None
    return None


def _mounts(manifest: Manifest, pod: Pod, container: Field) -> dict[PurePosixPath, tuple[Field, Field]]:
    """Each mount of the container with its volume, by its path. What a trainer mounts, patches and runtime say."""
    pods, containers = [pod], [container]
    if container is pod.trainer:
        pods = [*([pod.beneath] if pod.beneath else []), *(each for each in manifest.pods if not each.trainer)]
        containers = [each for part in pods for each in part.spec["containers"] if each["name"].text == TRAINER]
    volumes = {volume["name"].text: volume for part in pods for volume in part.spec["volumes"]}
    mounts = [mount for each in containers for mount in each["volumeMounts"] if mount["name"].text in volumes]
    return {PurePosixPath(mount["mountPath"].text): (mount, volumes[mount["name"].text]) for mount in mounts}


def _keys(config_map: Manifest, volume: Field) -> Mapping[str, str]:
    """The files of a volume from a ConfigMap, each with its key."""
    items = list(volume.at("configMap.items"))
    return {item["path"].text: item["key"].text for item in items} or {
        key: key for key, _ in config_map.root["data"].members
    }


def _given(manifest: Manifest) -> Iterator[Given]:
    """Each configuration that lies in a ConfigMap beside this object."""
    for pod in manifest.pods:
        for container in pod.main:
            file = _file(container)
            mounts = _mounts(manifest, pod, container) if file else {}
            path = PurePosixPath(file.text if file else "")
            place = next((each for each in (path, *path.parents) if each in mounts), None)
            if file is None or place is None:
                continue
            mount, volume = mounts[place]
            config_map = manifest.neighbour("ConfigMap", volume.at("configMap.name").text)
            if config_map is not None:
                name = str(path.relative_to(place)) if path != place else mount["subPath"].text
                key = _keys(config_map, volume).get(name, "")
                yield Given(container=container, word=file, config_map=config_map, key=key)


def _path(manifest: Manifest) -> Iterator[Found]:
    for given in _given(manifest):
        if not given.key:
            keys = ", ".join(key for key, _ in given.config_map.root["data"].members) or "no file"
            what = f"is {given.word.text}, a file that the ConfigMap {given.config_map.name} there lacks"
            yield given.word.found(what, f"it has {keys}")
    for pod in manifest.pods:
        for container in pod.main:
            file, mounts = _file(container), _mounts(manifest, pod, container)
            if file and not any(PurePosixPath(file.text).is_relative_to(place) for place in mounts):
                elsewhere = _elsewhere(manifest, mounts, PurePosixPath(file.text).name)
                if elsewhere:
                    yield file.found(f"is {file.text}, where no volume is mounted", f"the ConfigMap's is {elsewhere}")


def _elsewhere(manifest: Manifest, mounts: Mapping[PurePosixPath, tuple[Field, Field]], name: str) -> str | None:
    """Where a mounted ConfigMap beside this object has a YAML file, of this name if there are several."""
    found: list[str] = []
    for place, (mount, volume) in mounts.items():
        config_map = manifest.neighbour("ConfigMap", volume.at("configMap.name").text)
        if config_map and not mount["subPath"]:
            found += [str(place / file) for file in _keys(config_map, volume) if file.endswith(_YAML)]
    return min(found, key=lambda each: PurePosixPath(each).name != name, default=None)


def _load(given: Given) -> Loaded:
    """The configuration with the options that the container adds. ConfigError with every problem."""
    container = given.container
    shortcuts: dict[str, object] = {
        flag: [each.text for each in found] if flag == "--data" else scalar(found[-1].text)
        for flag in SHORTCUTS
        if (found := values(container, flag))
    }
    preset = option(container, "--preset")
    return load(
        _label(given),
        text=given.text.text,
        preset=preset.text if preset else None,
        overrides=[each.text for each in values(container, "--set")],
        shortcuts=shortcuts,
    )


def _label(given: Given) -> Path:
    return Path(given.key)


def _configuration(config_map: Manifest) -> Iterator[Found]:
    """Looks at a ConfigMap, so that what is wrong is told at its lines; what options add is told at the key."""
    found: dict[tuple[str, int | None], Found] = {}
    for other in config_map.beside if config_map.kind == "ConfigMap" else ():
        for given in _given(other):
            if given.config_map is config_map and given.text.text:
                found |= {(each.what, each.line): each for each in _wrong(given)}
    yield from found.values()


def _wrong(given: Given) -> Iterator[Found]:
    label = str(_label(given))
    first = given.config_map.blocks.get(given.text.path)
    try:
        warnings = _load(given).warnings
    except ConfigError as error:
        for problem in error.problems or (Problem(what=error.what, hint=error.hint),):
            is_here = problem.file == label and problem.line is not None and first is not None
            yield Found(
                path=given.text.path,
                what=f"{shown(given.text.path)}: {problem.what}",
                remedy=problem.hint or "loradock config schema lists the keys",
                line=(first or 0) + (problem.line or 0) - 1 if is_here else None,
            )
        return
    for warning in warnings:
        place, _, what = warning.partition(": ")
        line = place.removeprefix(f"{label}:")
        yield Found(
            path=given.text.path,
            what=f"{shown(given.text.path)}: {what}",
            remedy="delete what has no effect",
            line=first + int(line) - 1 if first and line.isdecimal() else None,
            level="warning",
        )


def _silence(manifest: Manifest) -> Iterator[Found]:
    """The healthcheck kills a run whose heartbeat is older than its limit; the run ends itself with 82 before that."""
    configured = {given.word.path: given for given in _given(manifest) if given.text.text}
    for container in (container for pod in manifest.pods for container in pod.main):
        asked = option(container, variable=HEARTBEAT_LIMIT)
        probe = container.at("livenessProbe.exec.command")
        has_probe = any(word.text.endswith("healthcheck") for word in probe)
        seconds = asked.count if asked else HEARTBEAT_LIMIT_SECONDS if has_probe else None
        if seconds is None or not runs_loradock(container):
            continue
        file = _file(container)
        given = configured.get(file.path) if file else None
        longest = _longest(given)
        if longest is not None and seconds <= longest:
            what = (
                f"kills after {seconds} s without a heartbeat, and the run would end itself with 82 after {longest:g} s"
            )
            remedy = (
                f"{HEARTBEAT_LIMIT} above each of limits.*, as {longest + 300:g}; limits of 0 need no liveness probe"
            )
            yield (asked or probe).found(what, remedy, level="error" if given else "warning")


def _longest(given: Given | None) -> float | None:
    """The longest silence that a run bears, in seconds; None where its configuration cannot be read."""
    try:
        limits = _load(given).config.limits if given else LimitsConfig()
    except ConfigError:
        return None
    each = (limits.setup_seconds, limits.step_seconds, limits.save_seconds)
    return math.inf if 0 in each else max(each)


RULES = (
    Rule(
        name="config-path",
        says="The configuration that `train` is given lies where the ConfigMap of the file is mounted.",
        look=_path,
    ),
    Rule(
        name="configuration",
        says="A configuration in a ConfigMap is one that loradock takes, with the options beside it.",
        look=_configuration,
    ),
    Rule(
        name="heartbeat-limit",
        says="The healthcheck waits longer than the watchdog (a warning where the configuration is elsewhere).",
        look=_silence,
    ),
)
