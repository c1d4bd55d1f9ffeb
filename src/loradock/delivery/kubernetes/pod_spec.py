"""The pod of a run: metadata and spec, the same for every kind.

Pod Security "restricted" is kept: no root, no capability, no escalation, the runtime's seccomp profile, and no volume
of the node but where `--host-path` asks for one.
"""

from __future__ import annotations

from typing import Any

from loradock import __version__
from loradock.delivery.kubernetes.container import container_security, literal, resources, secret_variables, training
from loradock.delivery.kubernetes.names import QUEUE_LABEL
from loradock.delivery.kubernetes.quantities import shown
from loradock.delivery.kubernetes.workload import CARDS, CONFIG_FILE, Volume, Workload

UID = 65532
"""The image's own user; its group is 0, which stays as it is."""
LOCK_DIGITS = 32


def run_labels(workload: Workload) -> dict[str, str]:
    """The labels of every object of a workload."""
    return {
        "app.kubernetes.io/name": "loradock",
        "app.kubernetes.io/instance": workload.name,
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/component": "training",
        "app.kubernetes.io/managed-by": "loradock-render",
        **dict(workload.labels),
    }


def run_annotations(workload: Workload) -> dict[str, str]:
    """Which run this is, and the lock of its packages: so many digits that podman, which takes 63, plays it too."""
    lock = {"loradock/lock-sha256": workload.lock_sha256[:LOCK_DIGITS]} if workload.lock_sha256 else {}
    return {"loradock/run-id": workload.identity, **lock, **dict(workload.annotations)}


def metadata(workload: Workload, *, name: str | None = None, is_queued: bool = False) -> dict[str, Any]:
    """The metadata of an object; `is_queued` for the one that a queue admits."""
    queue = workload.placement.queue if is_queued else None
    return {
        "name": name or workload.name,
        **({"namespace": workload.namespace} if workload.namespace else {}),
        "labels": {**run_labels(workload), **({QUEUE_LABEL: queue} if queue else {})},
        "annotations": run_annotations(workload),
    }


def template(workload: Workload, *, container: str, rendezvous: str | None) -> dict[str, Any]:
    """A pod template; `rendezvous` is the host of the first pod, where there are several."""
    return {
        "metadata": {"labels": run_labels(workload), "annotations": run_annotations(workload)},
        "spec": spec(workload, container=container, rendezvous=rendezvous),
    }


def spec(workload: Workload, *, container: str, rendezvous: str | None) -> dict[str, Any]:
    """The pod's spec with one container of this name."""
    placement = workload.placement
    content: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": workload.sizes.grace_seconds.value,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": workload.account.service_account,
        "securityContext": pod_security(workload),
        "runtimeClassName": placement.runtime_class,
        "schedulerName": placement.scheduler,
        "priorityClassName": placement.priority_class,
        "nodeSelector": dict(placement.node_selector),
        "tolerations": tolerations(workload),
        "affinity": affinity(workload),
        "topologySpreadConstraints": spread(workload),
        "imagePullSecrets": [{"name": workload.pull_secret}] if workload.pull_secret else None,
        "initContainers": init_containers(workload),
        "containers": [training(workload, name=container, rendezvous=rendezvous)],
        "volumes": volumes(workload),
    }
    return {key: value for key, value in content.items() if value not in (None, [], {})}


def pod_security(workload: Workload) -> dict[str, Any]:
    """Who the processes are. OpenShift gives uid and fsGroup of its own, and refuses others."""
    who = workload.account
    identity = {} if who.is_openshift else {"runAsUser": who.uid or UID, "fsGroup": who.fs_group or UID}
    return {
        "runAsNonRoot": True,
        **identity,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def volumes(workload: Workload) -> list[dict[str, Any]]:
    """The ConfigMap and every volume."""
    config = [{"name": "config", "configMap": {"name": workload.config_map}}] if workload.config_text else []
    return [*config, *({"name": volume.name, **source(volume)} for volume in workload.volumes)]


def source(volume: Volume) -> dict[str, Any]:
    """Where a volume comes from, as the API has it."""
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.host_path is not None:
        return {"hostPath": {"path": volume.host_path, "type": "Directory"}}
    medium = {"medium": "Memory"} if volume.is_memory else {}
    return {"emptyDir": {**medium, "sizeLimit": shown(volume.size_bytes)}}


def init_containers(workload: Workload) -> list[dict[str, Any]]:
    """The one that fetches data, with the same limits, so that it asks the node for nothing more."""
    fetch = workload.fetch
    if fetch is None:
        return []
    amounts = {name: amount for name, amount in resources(workload)["limits"].items() if "/" not in name}
    targets = [volume for volume in workload.volumes if volume.name in ("data", "tmp")]
    return [
        {
            "name": "fetch",
            "image": fetch.image,
            "imagePullPolicy": "IfNotPresent",
            "args": [literal(argument) for argument in fetch.arguments],
            "env": [{"name": "HOME", "value": "/tmp"}, *secret_variables(workload)],
            "resources": {"requests": dict(amounts), "limits": dict(amounts)},
            "securityContext": container_security(workload),
            "volumeMounts": [{"name": target.name, "mountPath": target.path} for target in targets],
        }
    ]


def tolerations(workload: Workload) -> list[dict[str, Any]]:
    """Those asked for, and the taint that GPU nodes commonly carry, where GPUs are."""
    of_gpus = [{"key": CARDS, "operator": "Exists", "effect": "NoSchedule"}] if workload.sizes.gpus.value else []
    entries = [
        {
            "key": toleration.key,
            **(
                {"operator": "Exists"} if toleration.value is None else {"operator": "Equal", "value": toleration.value}
            ),
            **({"effect": toleration.effect} if toleration.effect else {}),
        }
        for toleration in workload.placement.tolerations
    ]
    return [*of_gpus, *(entry for entry in entries if entry not in of_gpus)]


def own_pods(workload: Workload) -> dict[str, Any]:
    """Selects the pods of this workload."""
    return {"matchLabels": {"app.kubernetes.io/instance": workload.name, "app.kubernetes.io/name": "loradock"}}


def affinity(workload: Workload) -> dict[str, Any] | None:
    """Pods of several nodes near one another, by the label of nodes that was named."""
    key = workload.placement.topology_key
    if workload.nodes == 1 or not key:
        return None
    term = {"topologyKey": key, "labelSelector": own_pods(workload)}
    near = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [near]}}


def spread(workload: Workload) -> list[dict[str, Any]]:
    """One pod a machine, where there are several."""
    if workload.nodes == 1:
        return []
    constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    return [{**constraint, "labelSelector": own_pods(workload)}]


def config_map(workload: Workload) -> list[dict[str, Any]]:
    """The configuration as an object of its own; none where the command says it all."""
    if workload.config_text is None:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(workload, name=workload.config_map),
            "immutable": True,
            "data": {CONFIG_FILE: workload.config_text},
        }
    ]
