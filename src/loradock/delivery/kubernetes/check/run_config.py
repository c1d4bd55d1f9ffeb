"""Rules on the configuration that a container gives to loradock: where it lies, what it says, how long it is silent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from loradock.config.sections.progress import LimitsConfig
from loradock.delivery.kubernetes.check.base import Manifest, rules, runs_loradock
from loradock.delivery.kubernetes.check.command_line import option
from loradock.delivery.kubernetes.check.fields import Field, Found, shown
from loradock.delivery.kubernetes.check.given import (
    YAML,
    Given,
    file_of,
    given_by,
    given_to,
    keys_of,
    load_given,
    mounts_of,
)
from loradock.delivery.kubernetes.check.meeting import run_processes
from loradock.errors import ConfigError, Problem
from loradock.plan.planner import require_samples

HEARTBEAT_LIMIT, HEARTBEAT_LIMIT_SECONDS = "LORADOCK_HEARTBEAT_LIMIT", 3900


def config_path(manifest: Manifest) -> Iterator[Found]:
    """The configuration that `train` is given lies where the ConfigMap of the file is mounted."""
    for mount in given_by(manifest):
        if not mount.key:
            keys = ", ".join(key for key, _ in mount.config_map.root["data"].members) or "no file"
            what = f"is {mount.word.text}, a file that the ConfigMap {mount.config_map.name} there lacks"
            yield mount.word.found(what, f"it has {keys}")
    for pod in manifest.pods:
        for container in pod.main:
            file, mounts = file_of(container), mounts_of(manifest, pod, container)
            if file and not any(PurePosixPath(file.text).is_relative_to(place) for place in mounts):
                elsewhere = _elsewhere(manifest, mounts, PurePosixPath(file.text).name)
                if elsewhere:
                    yield file.found(f"is {file.text}, where no volume is mounted", f"the ConfigMap's is {elsewhere}")


def _elsewhere(manifest: Manifest, mounts: Mapping[PurePosixPath, tuple[Field, Field]], name: str) -> str | None:
    """Where a mounted ConfigMap beside this object has a YAML file, of this name if there are several."""
    places: list[str] = []
    for place, (mount, volume) in mounts.items():
        config_map = manifest.neighbour("ConfigMap", volume.at("configMap.name").text)
        if config_map and not mount["subPath"]:
            places += [str(place / file) for file in keys_of(config_map, volume) if file.endswith(YAML)]
    return min(places, key=lambda path: PurePosixPath(path).name != name, default=None)


def configuration(config_map: Manifest) -> Iterator[Found]:
    """A configuration in a ConfigMap is one that loradock takes, with the options beside it.

    Looks at a ConfigMap, so that what is wrong is told at its lines; what options add is told at the key.
    """
    violations: dict[tuple[str, int | None], Found] = {}
    for mount in given_to(config_map):
        violations |= {(violation.what, violation.line): violation for violation in _wrong(mount)}
    yield from violations.values()


def _wrong(mount: Given) -> Iterator[Found]:
    try:
        warnings = load_given(mount).warnings
    except ConfigError as error:
        for problem in error.problems or (Problem(what=error.what, hint=error.hint),):
            yield Found(
                path=mount.text.path,
                what=f"{shown(mount.text.path)}: {problem.what}",
                remedy=problem.hint or "loradock config schema lists the keys",
                line=mount.line(f"{problem.file}:{problem.line}"),
            )
        return
    for warning in warnings:
        place, _, what = warning.partition(": ")
        yield Found(
            path=mount.text.path,
            what=f"{shown(mount.text.path)}: {what}",
            remedy="delete what has no effect",
            line=mount.line(place),
            level="warning",
        )


def global_batch(config_map: Manifest) -> Iterator[Found]:
    """A step has a sample for each process that the file starts.

    Looks at a ConfigMap, as `configuration` does, for the processes that the pods beside it start.
    """
    for mount in given_to(config_map):
        processes = run_processes(mount.manifest, mount.pod, mount.container)
        try:
            loaded = load_given(mount)
        except ConfigError:
            continue
        try:
            require_samples(loaded.config, processes=processes or 1)
        except ConfigError as error:
            yield Found(
                path=mount.text.path,
                what=f"{shown(mount.text.path)}: {error.what}",
                remedy=error.hint or "",
                line=mount.line(loaded.origins["train.global_batch"]),
            )


def heartbeat_limit(manifest: Manifest) -> Iterator[Found]:
    """The healthcheck waits longer than the watchdog (a warning where the configuration is elsewhere).

    The healthcheck kills a run whose heartbeat is older than its limit; the run ends itself with 82 before that.
    """
    configured = {mount.word.path: mount for mount in given_by(manifest) if mount.text.text}
    for container in (container for pod in manifest.pods for container in pod.main):
        limit_field = option(container, variable=HEARTBEAT_LIMIT)
        probe = container.at("livenessProbe.exec.command")
        has_probe = any(word.text.endswith("healthcheck") for word in probe)
        seconds = limit_field.count if limit_field else HEARTBEAT_LIMIT_SECONDS if has_probe else None
        if seconds is None or not runs_loradock(container):
            continue
        file = file_of(container)
        limit_seconds = configured.get(file.path) if file else None
        longest = _longest(limit_seconds)
        if longest is not None and seconds <= longest:
            what = (
                f"kills after {seconds} s without a heartbeat, and the run would end itself with 82 after {longest:g} s"
            )
            remedy = (
                f"{HEARTBEAT_LIMIT} above each of limits.*, as {longest + 300:g}; limits of 0 need no liveness probe"
            )
            yield (limit_field or probe).found(what, remedy, level="error" if limit_seconds else "warning")


def _longest(mount: Given | None) -> float | None:
    """The longest silence that a run bears, in seconds; None where its configuration cannot be read."""
    try:
        limits = load_given(mount).config.limits if mount else LimitsConfig()
    except ConfigError:
        return None
    seconds = (limits.setup_seconds, limits.step_seconds, limits.save_seconds)
    return math.inf if 0 in seconds else max(seconds)


RULES = rules(config_path, configuration, global_batch, heartbeat_limit)
