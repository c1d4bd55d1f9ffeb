"""Rules on where a container's run reads and writes: on volumes, and each run in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from loradock.config.load import Loaded
from loradock.delivery.kubernetes.check.base import Manifest, Pod, rules, runs_loradock
from loradock.delivery.kubernetes.check.command_line import variables
from loradock.delivery.kubernetes.check.fields import Field, Found, shown
from loradock.delivery.kubernetes.check.given import Given, given_by, given_to, load_given, mounts_of, parts_of
from loradock.delivery.kubernetes.check.meeting import is_group, nnodes
from loradock.errors import ConfigError

_HUB_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE")
_CACHES = ("XDG_CACHE_HOME", "LORADOCK_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_YES = ("1", "ON", "YES", "TRUE")
_OWN_VOLUMES = ("emptyDir", "ephemeral")


def _absolute(container: Field, text: str) -> PurePosixPath | None:
    """The path in the container; None where nobody knows it."""
    path = PurePosixPath(container["workingDir"].text, text)
    return path if text and path.is_absolute() and "$" not in str(path) and not text.startswith("~") else None


def _mount(manifest: Manifest, pod: Pod, container: Field, path: PurePosixPath) -> tuple[Field, Field] | None:
    """The mount that the path lies in, with its volume; None where it lies in the container's root."""
    mounts = mounts_of(manifest, pod, container)
    return next((mounts[parent] for parent in (path, *path.parents) if parent in mounts), None)


def _is_in_root(manifest: Manifest, pod: Pod, container: Field, path: PurePosixPath) -> bool:
    """False too where a runtime that is not here may mount something."""
    is_whole = not pod.is_partial or pod.beneath is not None
    return is_whole and _mount(manifest, pod, container, path) is None


def _has_read_only_root(manifest: Manifest, pod: Pod, container: Field) -> bool:
    """What holds for a trainer, its patches and its runtime say."""
    _, containers = parts_of(manifest, pod, container)
    return any(container.at("securityContext.readOnlyRootFilesystem").value is True for container in containers)


def _loaded(mount: Given) -> Loaded | None:
    try:
        return load_given(mount) if mount.text.text else None
    except ConfigError:
        return None


def output_volume(config_map: Manifest) -> Iterator[Found]:
    """The output of a configuration lies on a volume (a warning where the root can be written)."""
    for mount, loaded in ((mount, _loaded(mount)) for mount in given_to(config_map)):
        path = _absolute(mount.container, loaded.config.output or "") if loaded else None
        location = (mount.manifest, mount.pod, mount.container)
        if loaded and path and _is_in_root(*location, path):
            is_refused = _has_read_only_root(*location)
            end = "the root is read-only: nothing can be written" if is_refused else "it is lost with the pod"
            yield Found(
                path=mount.text.path,
                what=f"{shown(mount.text.path)}: output {path} lies on no volume, and {end}",
                remedy=f"a directory below one of {_paths(*location)}",
                level="error" if is_refused else "warning",
                line=mount.line(loaded.origins["output"]),
            )


def data_volume(config_map: Manifest) -> Iterator[Found]:
    """The data of a configuration lie on a volume."""
    for mount, loaded in ((mount, _loaded(mount)) for mount in given_to(config_map)):
        location = (mount.manifest, mount.pod, mount.container)
        for index, source in enumerate(loaded.config.data.sources if loaded else ()):
            path = PurePosixPath(source.path)
            if loaded and path.is_absolute() and "$" not in source.path and _is_in_root(*location, path):
                yield Found(
                    path=mount.text.path,
                    what=f"{shown(mount.text.path)}: {path} lies on no volume: it has to be in the image",
                    remedy=f"a path below one of {_paths(*location)}, or a volume for it",
                    line=mount.line(loaded.origins.get(f"data.sources.{index}.path", "")),
                )


def _paths(manifest: Manifest, pod: Pod, container: Field) -> str:
    """Where volumes that can hold data are mounted."""
    mounts = mounts_of(manifest, pod, container).items()
    paths = [str(path) for path, (_, volume) in mounts if not volume["configMap"] and not volume["secret"]]
    return ", ".join(path for path in paths if path != "/dev/shm") or "no volumes: add one"


def cache_volume(manifest: Manifest) -> Iterator[Found]:
    """Beside a read-only root caches lie on volumes.

    A cache of the hub that comes with the image is read, and needs no volume where the hub is off.
    """
    for pod in manifest.pods:
        for container in (container for container in pod.main if runs_loradock(container)):
            variables_set = dict(variables(container))
            is_offline = any(name in variables_set and variables_set[name].text.upper() in _YES for name in _OFFLINE)
            for name in (*(() if is_offline else _HUB_CACHES), *_CACHES):
                path = _absolute(container, variables_set[name].text) if name in variables_set else None
                location = (manifest, pod, container)
                if path and _has_read_only_root(*location) and _is_in_root(*location, path):
                    what = f"is {path}, which lies on no volume, and the root is read-only"
                    yield variables_set[name].found(what, f"a directory below one of {_paths(*location)}")


def own_output(manifest: Manifest) -> Iterator[Found]:
    """Runs that run at once do not share an output.

    Pods that run at once and do not meet are runs of their own.
    """
    for mount in given_by(manifest):
        job, container = mount.pod.job, mount.container
        at_once = (job["parallelism"].whole or 1) if job is not None else 1
        if job is None or at_once < 2 or job["completions"].whole == 1 or nnodes(container) or is_group(mount.pod):
            continue
        loaded = _loaded(mount)
        path = _absolute(container, loaded.config.output or "") if loaded else None
        mounted = _mount(manifest, mount.pod, container, path) if path else None
        if mounted and not mounted[0]["subPathExpr"] and not any(mounted[1][kind] for kind in _OWN_VOLUMES):
            what = f"starts {at_once} runs that all write to {path}"
            remedy = "parallelism: 1, launch --nnodes for one run on all, or --output with $(JOB_COMPLETION_INDEX)"
            yield job["parallelism"].found(what, remedy)


RULES = rules(output_volume, data_volume, cache_volume, own_output, warnings=(data_volume,))
