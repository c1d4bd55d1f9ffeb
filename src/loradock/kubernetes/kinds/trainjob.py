"""A TrainJob of Kubeflow Trainer (2.2 or later), with the TrainingRuntime that it refers to.

A TrainJob can say which image, arguments, resources and volumes; it cannot say how long a pod may take to end, what an
exit code means, or which probes there are. Those lie in the runtime, which a site may share between runs; what is the
run's own goes into `trainer` and `runtimePatches` (up to Trainer 2.1: podTemplateOverrides).
"""

from __future__ import annotations

from typing import Any

from loradock.errors import UsageError
from loradock.kubernetes.job_spec import job_spec, network, set_failure_policy
from loradock.kubernetes.kinds.base import Kind
from loradock.kubernetes.network_policy import network_policy
from loradock.kubernetes.pod_spec import config_map, metadata
from loradock.kubernetes.workload import Workload

API = "trainer.kubeflow.org/v1alpha1"
GROUP = "node"
CONTAINER = "node"
"""Trainer puts image, arguments and resources into the container of this name."""
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
MANAGER = "loradock"
OF_THE_RUN = ("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "serviceAccountName")
"""What of the pod a run may patch, and another run with the same runtime may want otherwise."""


def objects(workload: Workload) -> list[dict[str, Any]]:
    """ConfigMap, TrainingRuntime, TrainJob. UsageError for a time to live after its end, which a TrainJob has not."""
    if workload.ttl_seconds is not None:
        raise UsageError("nothing deletes a TrainJob after --ttl-seconds", hint="loradock render jobset, or without it")
    rendezvous = f"{workload.name}-{GROUP}-0-0.{workload.name}" if workload.nodes > 1 else None
    job = job_spec(workload, container=CONTAINER, rendezvous=rendezvous, failures=0)
    job.pop("activeDeadlineSeconds", None)  # the TrainJob's own
    pod = job["template"]["spec"]
    patch = {key: pod.pop(key) for key in OF_THE_RUN if key in pod}
    (training,) = pod["containers"]
    of_the_run = {"config"} | {each.name for each in workload.volumes if not each.is_site}
    patch["volumes"], pod["volumes"] = _parted(pod["volumes"], of_the_run)
    for group in ("initContainers", "containers"):
        if group in pod:
            patch[group] = [_mounts_parted(each, of_the_run) for each in pod[group]]
    trainer = {
        "image": workload.image,
        "args": training.pop("args"),
        "numNodes": workload.nodes,
        "resourcesPerNode": training["resources"],
        "env": training.pop("env"),
    }
    return [
        *config_map(workload),
        *network_policy(workload),
        runtime(workload, job),
        train_job(workload, trainer=trainer, patch=patch),
    ]


def _parted(entries: list[dict[str, Any]], chosen: set[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The entries whose name is chosen, and the others."""
    return [each for each in entries if each["name"] in chosen], [
        each for each in entries if each["name"] not in chosen
    ]


def _mounts_parted(container: dict[str, Any], chosen: set[str]) -> dict[str, Any]:
    """The patch that mounts the chosen volumes; the container keeps the others."""
    mounts, container["volumeMounts"] = _parted(container["volumeMounts"], chosen)
    return {"name": container["name"], "volumeMounts": mounts}


def runtime(workload: Workload, job: dict[str, Any]) -> dict[str, Any]:
    """What runs have in common."""
    group = {"name": GROUP, "replicas": 1, "template": {"metadata": {"labels": STEP}, "spec": job}}
    content = metadata(workload, name=runtime_name(workload))
    content["labels"]["trainer.kubeflow.org/framework"] = "torch"
    jobset = {
        "network": network(),
        "failurePolicy": set_failure_policy(workload),
        "replicatedJobs": [group],
    }
    return {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": content,
        "spec": {"mlPolicy": {"numNodes": workload.nodes}, "template": {"spec": jobset}},
    }


def train_job(workload: Workload, *, trainer: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The run itself."""
    pod = {"template": {"spec": patch}}
    group = {"name": GROUP, "template": {"spec": pod}}
    patches = {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [group]}}}}
    deadline = {"activeDeadlineSeconds": workload.deadline_seconds} if workload.deadline_seconds else {}
    reference = {"apiGroup": API.partition("/")[0], "kind": "TrainingRuntime", "name": runtime_name(workload)}
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": metadata(workload, is_queued=True),
        "spec": {
            **({"suspend": True} if workload.placement.queue else {}),
            **deadline,
            "runtimeRef": reference,
            "trainer": trainer,
            "runtimePatches": [patches],
        },
    }


def runtime_name(workload: Workload) -> str:
    """The name of the TrainingRuntime beside a TrainJob."""
    return f"{workload.name}-runtime"


KIND = Kind(name="trainjob", about="for Kubeflow Trainer 2.2 or later", objects=objects, container=CONTAINER)
