"""Rules on volumes and mounts: each fits the other, and /dev/shm holds what training puts into it."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.delivery.kubernetes.check.base import Manifest, Pod, is_training, resources, rules
from loradock.delivery.kubernetes.check.fields import Field, Found

SHARED_MEMORY = "/dev/shm"
_ADD_SHARED_MEMORY = "a volume emptyDir: {medium: Memory, sizeLimit: 8Gi}, mounted at /dev/shm"


def _mounts(pod: Pod) -> list[Field]:
    return [
        mount for container in pod.containers for name in ("volumeMounts", "volumeDevices") for mount in container[name]
    ]


def mount_volume(manifest: Manifest) -> Iterator[Found]:
    """Each mount names a volume of the pod, or a claim that is made for it (JobSet's `volumeClaimPolicies`)."""
    claimed = {template.at("metadata.name").text for template in manifest.claim_templates}
    for pod in manifest.pods:
        known = {
            volume["name"].text for mount in _laid_over(manifest, pod) for volume in mount.spec["volumes"]
        } | claimed
        for name in (mount["name"] for mount in _mounts(pod)):
            if name.text and name.text not in known and (pod.beneath or not pod.is_partial):
                remedy = f"there is {', '.join(sorted(known - {''}))}" if known else "add it to the pod's volumes"
                yield name.found(f"is {name.text!r}, and the pod has no such volume", remedy)


def _laid_over(manifest: Manifest, pod: Pod) -> list[Pod]:
    """The pod, and what it is one with: the template beneath it, and other patches of that."""
    if pod.beneath is None:
        return [pod]
    return [pod.beneath, *(other_pod for other_pod in manifest.pods if other_pod.beneath is pod.beneath)]


def claim_name(manifest: Manifest) -> Iterator[Found]:
    """A claim that is made for pods has a name that no volume of theirs has, and no namespace."""
    names = {volume["name"].text for volume in manifest.volumes}
    for template in manifest.claim_templates if manifest.kind != "TrainJob" else ():
        name, namespace = template.at("metadata.name"), template.at("metadata.namespace")
        if name.text and name.text in names:
            yield name.found(f"is {name.text!r}, and so is a volume of the pod", "delete the volume, or rename one")
        if namespace.text and manifest.kind != "StatefulSet":
            yield namespace.found("is set, and the claim is made in the JobSet's", "delete it")


def volume_unused(manifest: Manifest) -> Iterator[Found]:
    """Each volume is mounted."""
    for pod in manifest.pods:
        names = {mount["name"].text for mount in _mounts(pod)}
        for name in (volume["name"] for volume in pod.spec["volumes"]):
            if name.text and pod.main and name.text not in names and not pod.is_partial:
                yield name.found(f"is {name.text!r}, which no container mounts", "mount it, or delete it")


def key_reference(manifest: Manifest) -> Iterator[Found]:
    """A key of a ConfigMap or Secret that the file defines is there.

    Keys of ConfigMaps and Secrets that the same file defines; what it does not define may be in the cluster.
    """
    keys_of_kind = {
        (manifest_beside.kind, manifest_beside.name): _keys_of(manifest_beside)
        for manifest_beside in manifest.beside
        if manifest_beside.kind in ("ConfigMap", "Secret")
    }
    for pod in manifest.pods:
        for kind, name, key in _uses(pod):
            keys = keys_of_kind.get((kind, name.text))
            if keys is not None and key.text and key.text not in keys:
                remedy = f"it has {', '.join(sorted(keys)) or 'no keys'}"
                yield key.found(f"is {key.text!r}, which the {kind} {name.text} beside it lacks", remedy)


def _keys_of(manifest: Manifest) -> set[str]:
    return {key for part in ("data", "binaryData", "stringData") for key, _ in manifest.root[part].members}


def _uses(pod: Pod) -> Iterator[tuple[str, Field, Field]]:
    """Each use of a key, as (kind, name, key)."""
    for container in pod.containers:
        for variable in container["env"]:
            for kind in ("ConfigMap", "Secret"):
                source = variable["valueFrom"][f"{kind[0].lower()}{kind[1:]}KeyRef"]
                if source["optional"].value is not True:
                    yield kind, source["name"], source["key"]
    mounts = _mounts(pod)
    for volume in pod.spec["volumes"]:
        projected = list(volume.at("projected.sources"))
        for source in (volume, *projected):
            yield from _uses_of(source, mounts if source is volume else [], volume["name"].text)


def _uses_of(source: Field, mounts: list[Field], volume: str) -> Iterator[tuple[str, Field, Field]]:
    for kind, part, called in (("ConfigMap", source["configMap"], "name"), ("Secret", source["secret"], "secretName")):
        name = part[called] or part["name"]
        if not name or part["optional"].value is True:
            continue
        yield from ((kind, name, item["key"]) for item in part["items"])
        if not part["items"]:
            yield from ((kind, name, mount["subPath"]) for mount in mounts if mount["name"].text == volume)


def shared_memory(manifest: Manifest) -> Iterator[Found]:
    """What trains has memory at /dev/shm, more than the 64 MB of a container."""
    for pod in manifest.pods:
        if pod.is_partial:
            continue
        for container in (container for container in pod.main if is_training(container)):
            mount = next(
                (m for m in container["volumeMounts"] if m["mountPath"].text.rstrip("/") == SHARED_MEMORY), None
            )
            if mount is None:
                what = "mounts nothing at /dev/shm, whose 64 MB loader workers and NCCL overflow"
                yield container["volumeMounts"].found(what, _ADD_SHARED_MEMORY)
                continue
            volume = _volume(pod, mount["name"].text)
            if volume is not None and volume.at("emptyDir.medium").text != "Memory":
                yield (volume["emptyDir"] or volume).found(
                    "is mounted at /dev/shm and lies on a disk", _ADD_SHARED_MEMORY
                )


def shared_memory_size(manifest: Manifest) -> Iterator[Found]:
    """A volume in memory is not larger than the memory limit that it counts against."""
    for pod in manifest.pods:
        for container in pod.main:
            limit = resources(container).at("limits.memory").amount
            for mount in container["volumeMounts"]:
                volume = _volume(pod, mount["name"].text)
                empty = volume["emptyDir"] if volume is not None else Field(None)
                size = empty["sizeLimit"].amount if empty["medium"].text == "Memory" else None
                if size is not None and limit is not None and size > limit:
                    what = f"is {empty['sizeLimit'].value}, more than the memory limit, which it counts against"
                    yield empty["sizeLimit"].found(what, "make it smaller, or the memory limit larger")


def _volume(pod: Pod, name: str) -> Field | None:
    return next((volume for volume in pod.spec["volumes"] if volume["name"].text == name), None)


RULES = rules(
    mount_volume, claim_name, volume_unused, key_reference, shared_memory, shared_memory_size, warnings=(volume_unused,)
)
