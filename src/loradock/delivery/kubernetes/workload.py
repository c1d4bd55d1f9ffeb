"""Workload: everything that a manifest of a run needs, whatever its kind."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from loradock.delivery.kubernetes.sizes import Sizes

CONFIG_FOLDER = "/etc/loradock"
CONFIG_FILE = "config.yaml"
CARDS = "nvidia.com/gpu"


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
    scheduler: str | None = None
    runtime_class: str | None = None


@dataclass(frozen=True, kw_only=True)
class Account:
    """Who the processes are; without a number the image's own user, and on OpenShift the cluster's choice."""

    service_account: str | None = None
    uid: int | None = None
    fs_group: int | None = None
    is_openshift: bool = False


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A run to be described. `command` is what the image is given; `config_text` the ConfigMap's file, None for none.

    `nodes` machines with `processes` each; `failures`: how often a failure that may pass is tried again. `egress`: the
    addresses that a network policy leaves open beside DNS and the run's own pods; None where nothing is closed.
    `is_guarded`: nobody but its own pods reaches its pods. `beats`: it shows by heartbeats that it lives, as a training
    does.
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
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    card_resource: str = CARDS
    devices: tuple[tuple[str, int], ...] = ()
    placement: Placement = Placement()
    failures: int = 3
    deadline_seconds: int | None = None
    ttl_seconds: int | None = None
    account: Account = Account()
    has_read_only_root: bool = True
    egress: tuple[str, ...] | None = None
    is_guarded: bool = False
    beats: bool = True

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
