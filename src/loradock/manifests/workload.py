"""Workload: everything that a manifest of a run needs, whatever its kind, and what Kubernetes would refuse of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loradock.errors import Problem
from loradock.manifests import names
from loradock.manifests.sizes import Sizes

CONFIG_FOLDER = "/etc/loradock"
CONFIG_FILE = "config.yaml"
Check = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A directory of the pod: a claim, a directory of the node, or an empty one (`is_memory`: in RAM).

    `size_bytes` limits an empty one. `is_site` says that it belongs to the site and not to the run.
    """

    name: str
    path: str
    claim: str | None = None
    host_path: str | None = None
    size_bytes: int = 0
    is_memory: bool = False
    is_read_only: bool = False
    is_site: bool = False


@dataclass(frozen=True, kw_only=True)
class SecretVariable:
    """A variable of the environment whose value stays in a Secret."""

    name: str
    secret: str
    key: str


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """A taint that the pods bear; without a value any, without an effect every one."""

    key: str
    value: str | None = None
    effect: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """An init container that fills the data volume, as from an object store. It sees the run's secrets."""

    image: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and when pods run. `topology_key`: the label of nodes whose value they should share."""

    queue: str | None = None
    priority_class: str | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A run to be described. `command` is what the image is given; `config_text` the ConfigMap's file, None for none.

    `nodes` machines with `processes` each; `failures`: how often a failure that may pass is tried again.
    """

    name: str
    image: str
    command: tuple[str, ...]
    sizes: Sizes
    config_text: str | None = None
    namespace: str | None = None
    run_id: str | None = None
    lock_sha256: str | None = None
    nodes: int = 1
    processes: int = 1
    volumes: tuple[Volume, ...] = ()
    working_directory: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[SecretVariable, ...] = ()
    fetch: Fetch | None = None
    pull_secret: str | None = None
    devices: tuple[tuple[str, int], ...] = ()
    placement: Placement = Placement()
    failures: int = 3
    deadline_seconds: int | None = None
    is_openshift: bool = False
    has_read_only_root: bool = True

    @property
    def digest(self) -> str:
        """Ten hex digits of the configuration: another configuration is another ConfigMap."""
        return hashlib.sha256((self.config_text or "\0".join(self.command)).encode()).hexdigest()[:10]

    @property
    def config_map(self) -> str:
        """The name of the ConfigMap."""
        return f"{self.name}-config-{self.digest}"

    @property
    def identity(self) -> str:
        """The run id that was given, else the name with the configuration's digest."""
        return self.run_id or f"{self.name}-{self.digest}"


def problems(workload: Workload) -> list[Problem]:
    """Every text that Kubernetes would refuse, by the option that gives it; none where it can be rendered."""
    return [
        Problem(what=f"{what}: {text!r} is refused", hint=wanted)
        for what, text, check in _texts(workload)
        if (wanted := check(text)) is not None
    ]


def _texts(workload: Workload) -> Iterator[tuple[str, str, Check]]:
    """(where it was given, the text, its check) of every text that comes from outside."""
    yield "--name", workload.name, names.workload_name
    yield "--image", workload.image, names.image
    for what, text, check in (
        ("--namespace", workload.namespace, names.label_name),
        ("--run-id", workload.run_id, names.filled_value),
        ("--pull-secret", workload.pull_secret, names.object_name),
        ("--queue", workload.placement.queue, names.filled_value),
        ("--priority-class", workload.placement.priority_class, names.object_name),
        ("--topology", workload.placement.topology_key, names.label_key),
        ("the configuration", workload.config_text, names.printable),
    ):
        if text is not None:
            yield what, text, check
    for argument in workload.command:
        yield "--set", argument, names.printable
    yield from _of_volumes(workload)
    yield from _of_environment(workload)
    yield from _of_placement(workload)


def _of_volumes(workload: Workload) -> Iterator[tuple[str, str, Check]]:
    for volume in workload.volumes:
        if volume.claim is not None:
            yield f"--{volume.name}-claim", volume.claim, names.object_name
        if volume.host_path is not None:
            yield f"--host-path {volume.name}", volume.host_path, names.path


def _of_environment(workload: Workload) -> Iterator[tuple[str, str, Check]]:
    for name, value in workload.environment:
        yield "--env", name, names.variable
        yield f"--env {name}", value, names.printable
    for secret in workload.secrets:
        yield "--secret-env", secret.name, names.variable
        yield f"--secret-env {secret.name}", secret.secret, names.object_name
        yield f"--secret-env {secret.name}", secret.key, names.secret_key
    if workload.fetch:
        yield "--fetch-image", workload.fetch.image, names.image
        for argument in workload.fetch.arguments:
            yield "--fetch-arg", argument, names.printable


def _of_placement(workload: Workload) -> Iterator[tuple[str, str, Check]]:
    for key, value in workload.placement.node_selector:
        yield "--node-selector", key, names.label_key
        yield f"--node-selector {key}", value, names.label_value
    for each in workload.placement.tolerations:
        yield "--toleration", each.key, names.label_key
        if each.value is not None:
            yield f"--toleration {each.key}", each.value, names.label_value
        if each.effect is not None:
            yield f"--toleration {each.key}", each.effect, _effect
    for name, _ in workload.devices:
        yield "--device", name, names.label_key


def _effect(text: str) -> str | None:
    known = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    return None if text in known else f"one of {', '.join(known)}"
