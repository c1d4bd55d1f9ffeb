"""The pod of a run: metadata and spec, the same for every kind.

Pod Security "restricted" is kept: no root, no capability, no escalation, the runtime's seccomp profile, and no volume
of the node but where `--host-path` asks for one.
"""

from __future__ import annotations

from typing import Any

from loradock import __version__
from loradock.manifests.quantities import shown
from loradock.manifests.workload import CONFIG_FILE, CONFIG_FOLDER, Volume, Workload

UID = 65532
"""The image's own user; its group is 0, which stays as it is."""
HEARTBEAT = "/tmp/loradock-heartbeat"
HEALTHCHECK = "/opt/loradock/bin/healthcheck"
RENDEZVOUS_PORT = 29400
NETWORK_INTERFACE = "eth0"
"""What a pod's own network is called by every container runtime of Kubernetes."""
INDEX = "JOB_COMPLETION_INDEX"
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GPU = "nvidia.com/gpu"
LOCK_DIGITS = 32


def run_labels(workload: Workload) -> dict[str, str]:
    """The labels of every object of a workload."""
    return {
        "app.kubernetes.io/name": "loradock",
        "app.kubernetes.io/instance": workload.name,
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/component": "training",
        "app.kubernetes.io/managed-by": "loradock-render",
    }


def run_annotations(workload: Workload) -> dict[str, str]:
    """Which run this is, and the lock of its packages: so many digits that podman, which takes 63, plays it too."""
    lock = {"loradock/lock-sha256": workload.lock_sha256[:LOCK_DIGITS]} if workload.lock_sha256 else {}
    return {"loradock/run-id": workload.identity, **lock}


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
        "securityContext": pod_security(workload),
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
    own = {} if workload.is_openshift else {"runAsUser": UID, "fsGroup": UID}
    return {
        "runAsNonRoot": True,
        **own,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security(workload: Workload) -> dict[str, Any]:
    """What a container may do."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": workload.has_read_only_root,
        "capabilities": {"drop": ["ALL"]},
    }


def training(workload: Workload, *, name: str, rendezvous: str | None) -> dict[str, Any]:
    """The container that trains."""
    content = {
        "name": name,
        "image": workload.image,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments(workload, rendezvous=rendezvous),
        "workingDir": workload.working_directory,
        "env": environment(workload),
        "resources": resources(workload),
        "startupProbe": startup_probe(workload),
        "livenessProbe": liveness_probe(workload),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(workload),
        "volumeMounts": mounts(workload),
    }
    return {key: value for key, value in content.items() if value is not None}


def arguments(workload: Workload, *, rendezvous: str | None) -> list[str]:
    """What the image's entrypoint is given; several processes go through `loradock launch`."""
    given = [literal(each) for each in workload.command]
    if workload.processes == 1 and workload.nodes == 1:
        return given
    launch = ["launch", "--nproc", str(workload.processes)]
    if workload.nodes > 1:
        launch += ["--nnodes", str(workload.nodes), "--node-rank", f"$({INDEX})"]
        launch += ["--rdzv", f"{rendezvous}:{RENDEZVOUS_PORT}"]
    return [*launch, *given]


def literal(text: str) -> str:
    """A text in which Kubernetes expands no `$(NAME)`."""
    return text.replace("$", "$$")


def environment(workload: Workload) -> list[dict[str, Any]]:
    """Our own variables, then those that were asked for, which win; values of Secrets stay there."""
    ours = {"LORADOCK_HEARTBEAT": HEARTBEAT}
    if workload.sizes.silence_seconds.value:
        ours["LORADOCK_HEARTBEAT_LIMIT"] = str(workload.sizes.silence_seconds.value)
    if workload.nodes > 1:
        ours |= {"NCCL_SOCKET_IFNAME": NETWORK_INTERFACE, "GLOO_SOCKET_IFNAME": NETWORK_INTERFACE}
    if workload.nodes * workload.processes > 1:
        ours["NCCL_DEBUG"] = "WARN"
    hidden = {each.name for each in workload.secrets}
    plain = {name: value for name, value in {**ours, **dict(workload.environment)}.items() if name not in hidden}
    content: list[dict[str, Any]] = [{"name": name, "value": literal(value)} for name, value in plain.items()]
    if workload.nodes > 1:
        # The Job's controller would add it; so that the reference in the arguments is defined, it stands here.
        path = {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}
        content.append({"name": INDEX, "valueFrom": {"fieldRef": path}})
    return [*content, *secret_variables(workload)]


def secret_variables(workload: Workload) -> list[dict[str, Any]]:
    """The variables whose values stay in Secrets."""
    return [
        {"name": each.name, "valueFrom": {"secretKeyRef": {"name": each.secret, "key": each.key}}}
        for each in workload.secrets
    ]


def resources(workload: Workload) -> dict[str, Any]:
    """Requests and limits are the same: the pod is not the first to be evicted, and gets what the plan counted on."""
    sizes = workload.sizes
    amounts = {
        "cpu": str(sizes.cpus.value),
        "memory": shown(sizes.memory_bytes.value),
        "ephemeral-storage": shown(sizes.storage_bytes.value),
        **({GPU: str(sizes.gpus.value)} if sizes.gpus.value else {}),
        **{name: str(count) for name, count in workload.devices},
    }
    return {"requests": dict(amounts), "limits": dict(amounts)}


def startup_probe(workload: Workload) -> dict[str, Any]:
    """Done when the run gives its first heartbeat; until then the other probe waits."""
    period = 10
    failures = -(-workload.sizes.start_seconds.value // period)
    return {
        "exec": {"command": ["test", "-e", HEARTBEAT]},
        "periodSeconds": period,
        "timeoutSeconds": 10,
        "failureThreshold": failures,
    }


def liveness_probe(workload: Workload) -> dict[str, Any] | None:
    """The image's own healthcheck: fails when the heartbeat is too old. None where silence has no limit."""
    if not workload.sizes.silence_seconds.value:
        return None
    return {"exec": {"command": [HEALTHCHECK]}, "periodSeconds": 60, "timeoutSeconds": 10, "failureThreshold": 3}


def volumes(workload: Workload) -> list[dict[str, Any]]:
    """The ConfigMap and every volume."""
    config = [{"name": "config", "configMap": {"name": workload.config_map}}] if workload.config_text else []
    return [*config, *({"name": each.name, **source(each)} for each in workload.volumes)]


def source(volume: Volume) -> dict[str, Any]:
    """Where a volume comes from, as the API has it."""
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.host_path is not None:
        return {"hostPath": {"path": volume.host_path, "type": "Directory"}}
    medium = {"medium": "Memory"} if volume.is_memory else {}
    return {"emptyDir": {**medium, "sizeLimit": shown(volume.size_bytes)}}


def mounts(workload: Workload) -> list[dict[str, Any]]:
    """Where the volumes lie in the container."""
    config = {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}
    found = [{"name": each.name, "mountPath": each.path} | _mode(each) for each in workload.volumes]
    return [config, *found] if workload.config_text else found


def _mode(volume: Volume) -> dict[str, Any]:
    return {"readOnly": True} if volume.is_read_only else {}


def init_containers(workload: Workload) -> list[dict[str, Any]]:
    """The one that fetches data, with the same limits, so that it asks the node for nothing more."""
    fetch = workload.fetch
    if fetch is None:
        return []
    amounts = {name: amount for name, amount in resources(workload)["limits"].items() if "/" not in name}
    targets = [each for each in workload.volumes if each.name in ("data", "tmp")]
    return [
        {
            "name": "fetch",
            "image": fetch.image,
            "imagePullPolicy": "IfNotPresent",
            "args": [literal(each) for each in fetch.arguments],
            "env": [{"name": "HOME", "value": "/tmp"}, *secret_variables(workload)],
            "resources": {"requests": dict(amounts), "limits": dict(amounts)},
            "securityContext": container_security(workload),
            "volumeMounts": [{"name": each.name, "mountPath": each.path} for each in targets],
        }
    ]


def tolerations(workload: Workload) -> list[dict[str, Any]]:
    """Those asked for, and the taint that GPU nodes commonly carry, where cards are."""
    cards = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}] if workload.sizes.gpus.value else []
    asked = [
        {
            "key": each.key,
            **({"operator": "Exists"} if each.value is None else {"operator": "Equal", "value": each.value}),
            **({"effect": each.effect} if each.effect else {}),
        }
        for each in workload.placement.tolerations
    ]
    return [*cards, *(each for each in asked if each not in cards)]


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
