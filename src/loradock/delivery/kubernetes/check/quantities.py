"""Rules on what a container asks for."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.delivery.kubernetes.check.base import Manifest, Pod, resources, rules
from loradock.delivery.kubernetes.check.fields import Field, Found


def _is_whole(field: Field) -> bool:
    amount = field.amount
    return amount is not None and amount == amount.to_integral_value()


def gpu_requests(manifest: Manifest) -> Iterator[Found]:
    """A GPU that is requested has a limit of the same number."""
    for container in _containers(manifest):
        limits, requests = resources(container)["limits"], resources(container)["requests"]
        for name, request in requests.members:
            if "/" not in name:
                continue
            limit = limits[name]
            if not limit:
                yield request.found(
                    "has no limit, and Kubernetes takes none of it without", f"limits: {name}: {request.value}"
                )
            elif _is_whole(limit) and _is_whole(request) and limit.amount != request.amount:
                what = f"is {request.value} and the limit is {limit.value}: the two have to be one number"
                yield request.found(what, f"{name}: {limit.value} in both")


def request_over_limit(manifest: Manifest) -> Iterator[Found]:
    """No request is above its limit."""
    for container in _containers(manifest):
        for name, request in resources(container)["requests"].members:
            limit = resources(container).at("limits")[name]
            most, least = limit.amount, request.amount
            if "/" not in name and most is not None and least is not None and least > most:
                yield request.found(
                    f"asks for {request.value}, and the limit is {limit.value}", f"{name}: {limit.value}"
                )


def _limits(manifest: Manifest, resource: str, remedy: str) -> Iterator[Found]:
    for pod in manifest.pods:
        if pod.spec.at("resources.limits")[resource]:
            continue
        for container in (*pod.main, *pod.spec["initContainers"]):
            limits = resources(container).at("limits")
            if not _is_left_to_runtime(pod, container) and container.value is not None and not limits[resource]:
                yield limits[resource].found("is missing", remedy)


def _is_left_to_runtime(pod: Pod, container: Field) -> bool:
    return pod.is_partial and not resources(container)


def memory_limit(manifest: Manifest) -> Iterator[Found]:
    """Each container, or its pod, has a limit of memory."""
    yield from _limits(manifest, "memory", "without it one pod can take the node's memory: memory: 16Gi")


def storage_limit(manifest: Manifest) -> Iterator[Found]:
    """Each container, or its pod, has a limit of ephemeral storage."""
    remedy = "without it caches and logs can fill the node's disk, which evicts other pods: ephemeral-storage: 20Gi"
    yield from _limits(manifest, "ephemeral-storage", remedy)


def _containers(manifest: Manifest) -> Iterator[Field]:
    return (container for pod in manifest.pods for container in pod.containers)


RULES = rules(gpu_requests, request_over_limit, memory_limit, storage_limit)
