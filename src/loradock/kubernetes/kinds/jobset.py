"""A JobSet (jobset.x-k8s.io/v1alpha2): all machines start together, and begin anew together when one is lost."""

from __future__ import annotations

from typing import Any

from loradock.kubernetes.job_spec import job_spec, network, set_failure_policy
from loradock.kubernetes.kinds.base import CONTAINER, Kind
from loradock.kubernetes.network_policy import network_policy
from loradock.kubernetes.pod_spec import config_map, metadata
from loradock.kubernetes.workload import Workload

GROUP = "node"


def objects(workload: Workload) -> list[dict[str, Any]]:
    """The set counts the failures, so its Job bears none; JobSet makes the headless service itself."""
    rendezvous = f"{workload.name}-{GROUP}-0-0.{workload.name}" if workload.nodes > 1 else None
    job = job_spec(workload, container=CONTAINER, rendezvous=rendezvous, failures=0)
    job |= {"completionMode": "Indexed", "completions": workload.nodes, "parallelism": workload.nodes}
    lives = {"ttlSecondsAfterFinished": job.pop("ttlSecondsAfterFinished")} if workload.ttl_seconds is not None else {}
    spec = {
        **lives,
        **({"suspend": True} if workload.placement.queue else {}),
        "network": network(),
        "failurePolicy": set_failure_policy(workload),
        "replicatedJobs": [{"name": GROUP, "replicas": 1, "template": {"spec": job}}],
    }
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(workload, is_queued=True),
        "spec": spec,
    }
    return [*config_map(workload), *network_policy(workload), jobset]


KIND = Kind(name="jobset", about="several machines that start and begin anew together", objects=objects)
