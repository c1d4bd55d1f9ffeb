"""The kinds of object that run a workload on Kubernetes: the ordered table, and the function that builds each.

A function takes a Workload and gives the objects to apply, as dicts, and raises UsageError for a workload that the kind
cannot run. To add a kind: a function, and its line in KINDS; tests/kubernetes renders it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from loradock.delivery.kubernetes.job_spec import (
    headless_service,
    job_spec,
    network,
    network_policy,
    set_failure_policy,
)
from loradock.delivery.kubernetes.pod_spec import config_map, metadata
from loradock.delivery.kubernetes.pod_spec import spec as pod_spec
from loradock.delivery.kubernetes.workload import Workload
from loradock.errors import Problem, UsageError

CONTAINER = "train"
GROUP = "node"
TRAINER_API = "trainer.kubeflow.org/v1alpha1"
TRAINER = "node"
"""Trainer puts image, arguments and resources into the container of this name."""
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_MANAGER = "loradock"
_OF_THE_RUN = ("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "serviceAccountName")
"""What of the pod a run may patch, and another run with the same runtime may want otherwise."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """`about` says in a line what it is for; `container` is the name that policies and patches refer to."""

    name: str
    about: str
    objects: Callable[[Workload], list[dict[str, Any]]]
    container: str = CONTAINER


def pod(workload: Workload) -> list[dict[str, Any]]:
    """One try, for a first look or for whatever restarts it. UsageError for several nodes, and for a time to live."""
    if wrong := list(_unfit(workload)):
        raise UsageError("a Pod cannot do this", problems=wrong)
    content = pod_spec(workload, container=CONTAINER, rendezvous=None)
    if workload.deadline_seconds:
        content["activeDeadlineSeconds"] = workload.deadline_seconds
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata(workload, is_queued=True), "spec": content}
    return [*config_map(workload), *network_policy(workload), manifest]


def _unfit(workload: Workload) -> Iterator[Problem]:
    if workload.nodes > 1:
        yield Problem(what=f"a Pod is one node, not {workload.nodes}", hint="loradock render job ... --nodes N")
    if workload.ttl_seconds is not None:
        hint = "loradock render job ... --ttl-seconds S"
        yield Problem(what="nothing deletes a Pod after --ttl-seconds", hint=hint)


def job(workload: Workload) -> list[dict[str, Any]]:
    """Tried again by the exit code; on several nodes one event may end all, so it bears as many failures for each."""
    rendezvous = f"{workload.name}-0.{workload.name}" if workload.nodes > 1 else None
    failures = workload.failures * workload.nodes
    spec = job_spec(workload, container=CONTAINER, rendezvous=rendezvous, failures=failures)
    if workload.placement.queue:
        spec = {"suspend": True, **spec}
    if rendezvous:
        spec["template"]["spec"]["subdomain"] = workload.name
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(workload, is_queued=True), "spec": spec}
    return [
        *config_map(workload),
        *network_policy(workload),
        *([headless_service(workload)] if rendezvous else []),
        manifest,
    ]


def jobset(workload: Workload) -> list[dict[str, Any]]:
    """All nodes start together, and again together when one is lost.

    The set counts the failures, so its Job bears none; JobSet makes the headless service itself.
    """
    rendezvous = f"{workload.name}-{GROUP}-0-0.{workload.name}" if workload.nodes > 1 else None
    each = job_spec(workload, container=CONTAINER, rendezvous=rendezvous, failures=0)
    each |= {"completionMode": "Indexed", "completions": workload.nodes, "parallelism": workload.nodes}
    lives = {"ttlSecondsAfterFinished": each.pop("ttlSecondsAfterFinished")} if workload.ttl_seconds is not None else {}
    spec = {
        **lives,
        **({"suspend": True} if workload.placement.queue else {}),
        "network": network(),
        "failurePolicy": set_failure_policy(workload),
        "replicatedJobs": [{"name": GROUP, "replicas": 1, "template": {"spec": each}}],
    }
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(workload, is_queued=True),
        "spec": spec,
    }
    return [*config_map(workload), *network_policy(workload), manifest]


def trainjob(workload: Workload) -> list[dict[str, Any]]:
    """For Kubeflow Trainer 2.2 or later, with the TrainingRuntime that it refers to. UsageError for a time to live.

    A TrainJob can say which image, arguments, resources and volumes; it cannot say how long a pod may take to end, what
    an exit code means, or which probes there are. Those lie in the runtime, which a site may share between runs; what
    is the run's own goes into `trainer` and `runtimePatches` (up to Trainer 2.1: podTemplateOverrides).
    """
    if workload.ttl_seconds is not None:
        raise UsageError("nothing deletes a TrainJob after --ttl-seconds", hint="loradock render jobset, or without it")
    rendezvous = f"{workload.name}-{GROUP}-0-0.{workload.name}" if workload.nodes > 1 else None
    spec = job_spec(workload, container=TRAINER, rendezvous=rendezvous, failures=0)
    spec.pop("activeDeadlineSeconds", None)  # the TrainJob's own
    of_pod = spec["template"]["spec"]
    patch = {key: of_pod.pop(key) for key in _OF_THE_RUN if key in of_pod}
    (training,) = of_pod["containers"]
    of_the_run = {"config"} | {volume.name for volume in workload.volumes if not volume.is_site}
    patch["volumes"], of_pod["volumes"] = _parted(of_pod["volumes"], of_the_run)
    for group in ("initContainers", "containers"):
        if group in of_pod:
            patch[group] = [_mounts_parted(part, of_the_run) for part in of_pod[group]]
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
        _runtime(workload, spec),
        _train_job(workload, trainer=trainer, patch=patch),
    ]


def _parted(entries: list[dict[str, Any]], names_chosen: set[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The entries whose name is chosen, and the others."""
    return [entry for entry in entries if entry["name"] in names_chosen], [
        entry for entry in entries if entry["name"] not in names_chosen
    ]


def _mounts_parted(container: dict[str, Any], names_chosen: set[str]) -> dict[str, Any]:
    """The patch that mounts the chosen volumes; the container keeps the others."""
    mounts, container["volumeMounts"] = _parted(container["volumeMounts"], names_chosen)
    return {"name": container["name"], "volumeMounts": mounts}


def _runtime(workload: Workload, job: dict[str, Any]) -> dict[str, Any]:
    """What runs have in common."""
    group = {"name": GROUP, "replicas": 1, "template": {"metadata": {"labels": _STEP}, "spec": job}}
    content = metadata(workload, name=_runtime_name(workload))
    content["labels"]["trainer.kubeflow.org/framework"] = "torch"
    jobset = {
        "network": network(),
        "failurePolicy": set_failure_policy(workload),
        "replicatedJobs": [group],
    }
    return {
        "apiVersion": TRAINER_API,
        "kind": "TrainingRuntime",
        "metadata": content,
        "spec": {"mlPolicy": {"numNodes": workload.nodes}, "template": {"spec": jobset}},
    }


def _train_job(workload: Workload, *, trainer: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The run itself."""
    group = {"name": GROUP, "template": {"spec": {"template": {"spec": patch}}}}
    patches = {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [group]}}}}
    deadline = {"activeDeadlineSeconds": workload.deadline_seconds} if workload.deadline_seconds else {}
    reference = {"apiGroup": TRAINER_API.partition("/")[0], "kind": "TrainingRuntime", "name": _runtime_name(workload)}
    return {
        "apiVersion": TRAINER_API,
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


def _runtime_name(workload: Workload) -> str:
    """The name of the TrainingRuntime beside a TrainJob."""
    return f"{workload.name}-runtime"


KINDS: tuple[Kind, ...] = (
    Kind(name="pod", about="one try on one node", objects=pod),
    Kind(name="job", about="tried again by the exit code, on one node or several", objects=job),
    Kind(name="jobset", about="several nodes that start, and start again, together", objects=jobset),
    Kind(name="trainjob", about="for Kubeflow Trainer 2.2 or later", objects=trainjob, container=TRAINER),
)


def named(name: str) -> Kind:
    """The kind of this name."""
    return next(kind for kind in KINDS if kind.name == name)
