"""The container that trains: what it is given, how tight it is, and how it shows that it lives."""

from __future__ import annotations

from typing import Any

from loradock.delivery.kubernetes.quantities import shown
from loradock.delivery.kubernetes.workload import CONFIG_FOLDER, Volume, Workload
from loradock.facts import IMAGE_DIGEST

HEARTBEAT = "/tmp/loradock-heartbeat"
HEALTHCHECK = "/opt/loradock/bin/healthcheck"
RENDEZVOUS_PORT = 29400
NETWORK_INTERFACE = "eth0"
"""What a pod's own network is called by every container runtime of Kubernetes."""
INDEX = "JOB_COMPLETION_INDEX"
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"


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
        **(probes(workload) if workload.beats else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(workload),
        "volumeMounts": mounts(workload),
    }
    return {key: value for key, value in content.items() if value is not None}


def arguments(workload: Workload, *, rendezvous: str | None) -> list[str]:
    """What the image's entrypoint is given; several processes go through `loradock launch`."""
    command = [literal(word) for word in workload.command]
    if workload.processes == 1 and workload.nodes == 1:
        return command
    launch = ["launch", "--nproc", str(workload.processes)]
    if workload.nodes > 1:
        launch += ["--nnodes", str(workload.nodes), "--node-rank", f"$({INDEX})"]
        launch += ["--rdzv", f"{rendezvous}:{RENDEZVOUS_PORT}"]
    return [*launch, *command]


def literal(text: str) -> str:
    """A text in which Kubernetes expands no `$(NAME)`."""
    return text.replace("$", "$$")


def environment(workload: Workload) -> list[dict[str, Any]]:
    """Our own variables, then those that were asked for, which win; values of Secrets stay there."""
    _, _, digest = workload.image.partition("@")
    ours = {IMAGE_DIGEST: digest} if digest else {}
    if workload.beats:
        ours["LORADOCK_HEARTBEAT"] = HEARTBEAT
    if workload.beats and workload.sizes.silence_seconds.value:
        ours["LORADOCK_HEARTBEAT_LIMIT"] = str(workload.sizes.silence_seconds.value)
    if workload.nodes > 1:
        ours |= {"NCCL_SOCKET_IFNAME": NETWORK_INTERFACE, "GLOO_SOCKET_IFNAME": NETWORK_INTERFACE}
    if workload.nodes * workload.processes > 1:
        ours["NCCL_DEBUG"] = "WARN"
    hidden = {secret.name for secret in workload.secrets}
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
        {"name": secret.name, "valueFrom": {"secretKeyRef": {"name": secret.secret, "key": secret.key}}}
        for secret in workload.secrets
    ]


def resources(workload: Workload) -> dict[str, Any]:
    """Requests and limits are the same: the pod is not the first to be evicted, and gets what the plan counted on."""
    sizes = workload.sizes
    amounts = {
        "cpu": str(sizes.cpus.value),
        "memory": shown(sizes.memory_bytes.value),
        "ephemeral-storage": shown(sizes.storage_bytes.value),
        **({workload.card_resource: str(sizes.gpus.value)} if sizes.gpus.value else {}),
        **{name: str(count) for name, count in workload.devices},
    }
    return {"requests": dict(amounts), "limits": dict(amounts)}


def probes(workload: Workload) -> dict[str, Any]:
    """By the heartbeats of a training."""
    return {"startupProbe": startup_probe(workload), "livenessProbe": liveness_probe(workload)}


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


def mounts(workload: Workload) -> list[dict[str, Any]]:
    """Where the volumes lie in the container."""
    config = {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}
    entries = [{"name": volume.name, "mountPath": volume.path} | _mode(volume) for volume in workload.volumes]
    return [config, *entries] if workload.config_text else entries


def _mode(volume: Volume) -> dict[str, Any]:
    return {"readOnly": True} if volume.is_read_only else {}
