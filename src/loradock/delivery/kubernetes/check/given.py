"""The configuration that a container gives to loradock: where it lies, and what it says with the options beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from loradock.config.load import SHORTCUTS, Loaded, load
from loradock.config.scalars import scalar
from loradock.delivery.kubernetes.check.base import TRAINER, Manifest, Pod, runs_loradock
from loradock.delivery.kubernetes.check.command_line import option, values, words
from loradock.delivery.kubernetes.check.fields import Field

YAML = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a container trains by lies in the volume of a ConfigMap; `key` is empty where that has no such file."""

    manifest: Manifest
    pod: Pod
    container: Field
    word: Field
    config_map: Manifest
    key: str

    @property
    def text(self) -> Field:
        """The configuration."""
        return self.config_map.root["data"][self.key]

    def line(self, place: str) -> int | None:
        """The line of the manifest for `FILE:LINE` of the configuration; None where that is not in a block."""
        first = self.config_map.blocks.get(self.text.path)
        file, _, line = place.rpartition(":")
        return first + int(line) - 1 if first and file == self.key and line.isdecimal() else None


def file_of(container: Field) -> Field | None:
    """The configuration that `train` is given, as an absolute path; None where there is none, or nobody knows."""
    line = words(container) if runs_loradock(container) else []
    starts = [index for index, word in enumerate(line) if word.text == "train"]
    tail = line[starts[0] + 1 :] if starts else []
    files = (word for word in tail if word.text.endswith(YAML) and not word.text.startswith("-"))
    for word in files:
        path = PurePosixPath(container["workingDir"].text, word.text)
        return Field(str(path), word.path) if path.is_absolute() and "$" not in word.text else None
    return None


def parts_of(manifest: Manifest, pod: Pod, container: Field) -> tuple[list[Pod], list[Field]]:
    """The pods and containers that say what the container is: for a trainer, its patches and its runtime."""
    if container is not pod.trainer:
        return [pod], [container]
    pods = [*([pod.beneath] if pod.beneath else []), *(pod for pod in manifest.pods if not pod.trainer)]
    return pods, [
        container for part in pods for container in part.spec["containers"] if container["name"].text == TRAINER
    ]


def mounts_of(manifest: Manifest, pod: Pod, container: Field) -> dict[PurePosixPath, tuple[Field, Field]]:
    """Each mount of the container with its volume, by its path."""
    pods, containers = parts_of(manifest, pod, container)
    volumes = {claim.at("metadata.name").text: claim for claim in manifest.claim_templates}
    volumes |= {volume["name"].text: volume for part in pods for volume in part.spec["volumes"]}
    mounts = [mount for container in containers for mount in container["volumeMounts"] if mount["name"].text in volumes]
    return {PurePosixPath(mount["mountPath"].text): (mount, volumes[mount["name"].text]) for mount in mounts}


def keys_of(config_map: Manifest, volume: Field) -> Mapping[str, str]:
    """The files of a volume from a ConfigMap, each with its key."""
    items = list(volume.at("configMap.items"))
    return {item["path"].text: item["key"].text for item in items} or {
        key: key for key, _ in config_map.root["data"].members
    }


def given_to(config_map: Manifest) -> Iterator[Given]:
    """Each use of a configuration in this object, where it is a ConfigMap."""
    for manifest in config_map.beside if config_map.kind == "ConfigMap" else ():
        yield from (mount for mount in given_by(manifest) if mount.config_map is config_map and mount.text.text)


def given_by(manifest: Manifest) -> Iterator[Given]:
    """Each configuration that lies in a ConfigMap beside this object."""
    for pod in manifest.pods:
        for container in pod.main:
            file = file_of(container)
            mounts = mounts_of(manifest, pod, container) if file else {}
            path = PurePosixPath(file.text if file else "")
            place = next((parent for parent in (path, *path.parents) if parent in mounts), None)
            if file is None or place is None:
                continue
            mount, volume = mounts[place]
            config_map = manifest.neighbour("ConfigMap", volume.at("configMap.name").text)
            if config_map is not None:
                name = str(path.relative_to(place)) if path != place else mount["subPath"].text
                key = keys_of(config_map, volume).get(name, "")
                yield Given(manifest=manifest, pod=pod, container=container, word=file, config_map=config_map, key=key)


def load_given(mount: Given) -> Loaded:
    """The configuration with the options that the container adds. ConfigError with every problem."""
    container = mount.container
    shortcuts: dict[str, object] = {
        flag: [name.text for name in paths] if flag == "--data" else scalar(paths[-1].text)
        for flag in SHORTCUTS
        if (paths := values(container, flag))
    }
    preset = option(container, "--preset")
    return load(
        Path(mount.key),
        text=mount.text.text,
        preset=preset.text if preset else None,
        overrides=[value.text for value in values(container, "--set")],
        shortcuts=shortcuts,
        expand=str,  # with the variables and the home of the container, which nobody knows here
    )
