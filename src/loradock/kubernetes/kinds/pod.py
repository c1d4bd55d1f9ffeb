"""A Pod: one try on one machine, for a first look or for whatever restarts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loradock.errors import Problem, UsageError
from loradock.kubernetes.kinds.base import CONTAINER, Kind
from loradock.kubernetes.network_policy import network_policy
from loradock.kubernetes.pod_spec import config_map, metadata, spec
from loradock.kubernetes.workload import Workload


def objects(workload: Workload) -> list[dict[str, Any]]:
    """UsageError for several machines, and for a time to live after its end."""
    if wrong := list(_unfit(workload)):
        raise UsageError("a Pod cannot do this", problems=wrong)
    content = spec(workload, container=CONTAINER, rendezvous=None)
    if workload.deadline_seconds:
        content["activeDeadlineSeconds"] = workload.deadline_seconds
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata(workload, is_queued=True), "spec": content}
    return [*config_map(workload), *network_policy(workload), pod]


def _unfit(workload: Workload) -> Iterator[Problem]:
    if workload.nodes > 1:
        yield Problem(what=f"a Pod is one machine, not {workload.nodes}", hint="loradock render job ... --nodes N")
    if workload.ttl_seconds is not None:
        hint = "loradock render job ... --ttl-seconds S"
        yield Problem(what="nothing deletes a Pod after --ttl-seconds", hint=hint)


KIND = Kind(name="pod", about="one try on one machine", objects=objects)
