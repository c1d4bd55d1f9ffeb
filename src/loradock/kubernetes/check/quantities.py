"""Rules on quantities: what a container asks for, and the sizes of volumes."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.kubernetes.check.base import (
    Manifest,
    Pod,
    Rule,
    is_card,
    resources,
)
from loradock.kubernetes.check.fields import Field, Found

_MEMORY = ("memory", "ephemeral-storage", "storage")
_EXAMPLE = {"cpu": "500m or 4", "memory": "16Gi"}


def _asked(manifest: Manifest) -> Iterator[tuple[str, Field]]:
    """Each resource with its field, of containers and pods, of claims and of volumes."""
    places = [pod.spec["resources"] for pod in manifest.pods]
    places += [resources(container) for pod in manifest.pods for container in pod.containers]
    places += [manifest.spec["resources"]] if manifest.kind == "PersistentVolumeClaim" else []
    for volume in (volume for pod in manifest.pods for volume in pod.spec["volumes"]):
        places.append(volume.at("ephemeral.volumeClaimTemplate.spec.resources"))
        if size := volume.at("emptyDir.sizeLimit"):
            yield "memory", size
    for place in places:
        for part in ("limits", "requests"):
            yield from place[part].members


def _wellformed(manifest: Manifest) -> Iterator[Found]:
    for name, field in _asked(manifest):
        if not isinstance(field.value, int | float | str):
            continue
        amount = field.amount
        example = _EXAMPLE.get(name, "1" if is_card(name) else "10Gi")
        if amount is None:
            yield field.found(
                f"is {field.value!r}, which is no quantity", f"a number and k, M, G, Ki, Mi or Gi: {example}"
            )
        elif amount < 0:
            yield field.found(f"is {field.value}, less than nothing", f"write {example}")
        elif name in _MEMORY and 0 < amount < 1024:
            what = f"is {field.value}, which is {amount.normalize():f} bytes"
            yield field.found(what, f"m is a thousandth; M or Mi is meant: {example}")


def _whole_cards(manifest: Manifest) -> Iterator[Found]:
    for name, field in _asked(manifest):
        if "/" in name and field.amount is not None and not _is_whole(field):
            remedy = "write 1; a part of a card is a resource of its own: nvidia.com/mig-1g.10gb: 1"
            yield field.found(f"is {field.value}, and {name} is handed out whole", remedy)


def _is_whole(field: Field) -> bool:
    amount = field.amount
    return amount is not None and amount == amount.to_integral_value()


def _cards(manifest: Manifest) -> Iterator[Found]:
    for container in _containers(manifest):
        limits, requests = resources(container)["limits"], resources(container)["requests"]
        for name, wanted in requests.members:
            if "/" not in name:
                continue
            limit = limits[name]
            if not limit:
                yield wanted.found(
                    "has no limit, and Kubernetes takes none of it without", f"limits: {name}: {wanted.value}"
                )
            elif _is_whole(limit) and _is_whole(wanted) and limit.amount != wanted.amount:
                what = f"is {wanted.value} and the limit is {limit.value}: the two have to be one number"
                yield wanted.found(what, f"{name}: {limit.value} in both")


def _over_limit(manifest: Manifest) -> Iterator[Found]:
    for container in _containers(manifest):
        for name, wanted in resources(container)["requests"].members:
            limit = resources(container).at("limits")[name]
            most, least = limit.amount, wanted.amount
            if "/" not in name and most is not None and least is not None and least > most:
                yield wanted.found(f"asks for {wanted.value}, and the limit is {limit.value}", f"{name}: {limit.value}")


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


def _memory_limit(manifest: Manifest) -> Iterator[Found]:
    yield from _limits(manifest, "memory", "without it one pod can take the node's memory: memory: 16Gi")


def _storage_limit(manifest: Manifest) -> Iterator[Found]:
    remedy = "without it caches and logs can fill the node's disk, which evicts other pods: ephemeral-storage: 20Gi"
    yield from _limits(manifest, "ephemeral-storage", remedy)


def _containers(manifest: Manifest) -> Iterator[Field]:
    return (container for pod in manifest.pods for container in pod.containers)


RULES = (
    Rule(
        name="quantity",
        says="Each amount is a quantity, not negative, and memory is not in thousandths.",
        look=_wellformed,
    ),
    Rule(name="whole-cards", says="Cards and other extended resources are asked for whole.", look=_whole_cards),
    Rule(name="card-requests", says="A card that is requested has a limit of the same number.", look=_cards),
    Rule(name="request-over-limit", says="No request is above its limit.", look=_over_limit),
    Rule(name="memory-limit", says="Each container, or its pod, has a limit of memory.", look=_memory_limit),
    Rule(
        name="storage-limit", says="Each container, or its pod, has a limit of ephemeral storage.", look=_storage_limit
    ),
)
