"""A Job: tried again by the exit code, on one machine or, indexed and with a headless Service, on several."""

from __future__ import annotations

from typing import Any

from loradock.kubernetes.job_spec import headless_service, job_spec
from loradock.kubernetes.kinds.base import CONTAINER, Kind
from loradock.kubernetes.network_policy import network_policy
from loradock.kubernetes.pod_spec import config_map, metadata
from loradock.kubernetes.workload import Workload


def objects(workload: Workload) -> list[dict[str, Any]]:
    """With several machines one event may end them all, so the Job bears that many failures for each of its own."""
    rendezvous = f"{workload.name}-0.{workload.name}" if workload.nodes > 1 else None
    failures = workload.failures * workload.nodes
    spec = job_spec(workload, container=CONTAINER, rendezvous=rendezvous, failures=failures)
    if workload.placement.queue:
        spec = {"suspend": True, **spec}
    if rendezvous:
        spec["template"]["spec"]["subdomain"] = workload.name
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(workload, is_queued=True), "spec": spec}
    return [
        *config_map(workload),
        *network_policy(workload),
        *([headless_service(workload)] if rendezvous else []),
        job,
    ]


KIND = Kind(name="job", about="tried again by the exit code, on one machine or several", objects=objects)
