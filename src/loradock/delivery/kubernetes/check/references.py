"""Rules on names and what they refer to: containers, replicated jobs, ConfigMaps, the runtime of a TrainJob."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.delivery.kubernetes.check.base import CONTAINER_LISTS, RUNTIMES, Manifest, Pod, rules
from loradock.delivery.kubernetes.check.fields import Field, Found

_OF_EVERY_NAMESPACE = "kube-root-ca.crt"


def container_name(manifest: Manifest) -> Iterator[Found]:
    """No container has the name of one in another list of its pod."""
    for pod in manifest.pods:
        names_seen: set[str] = set()
        for names in ([container["name"] for container in pod.spec[kind]] for kind in CONTAINER_LISTS):
            for name in names:
                if name.text in names_seen:
                    yield name.found(f"is {name.text!r}, and so is another of the pod's", "give each its own name")
            names_seen |= {name.text for name in names if name.text}


def replicated_job_reference(manifest: Manifest) -> Iterator[Found]:
    """What a JobSet says of a replicated job names one that it has."""
    if manifest.kind != "JobSet":
        return
    known = {job["name"].text for job in manifest.replicated_jobs}
    spec = manifest.spec
    references = [spec.at("coordinator.replicatedJob"), *spec.at("successPolicy.targetReplicatedJobs")]
    references += [name for rule in spec.at("failurePolicy.rules") for name in rule["targetReplicatedJobs"]]
    references += [dependency["name"] for job in manifest.replicated_jobs for dependency in job["dependsOn"]]
    for name in references:
        if name.text and name.text not in known:
            known_names = ", ".join(sorted(known - {""})) or "none"
            yield name.found(f"names {name.text!r}, not a replicated job of this JobSet", f"there is {known_names}")


def config_map(manifest: Manifest) -> Iterator[Found]:
    """A ConfigMap that a pod needs is in the file (a warning where the file has none at all).

    What no file has may be in the cluster; beside other ConfigMaps it is rather a slip of the pen.
    """
    config_maps = [manifest_beside.name for manifest_beside in manifest.beside if manifest_beside.kind == "ConfigMap"]
    for name in (name for pod in manifest.pods for name in _named(pod)):
        if not name.text or name.text == _OF_EVERY_NAMESPACE or manifest.neighbour("ConfigMap", name.text):
            continue
        if name.text in config_maps:
            yield name.found(f"is {name.text}, which is in another namespace", "write one metadata.namespace in both")
        elif config_maps:
            what = f"is {name.text!r}, and the ConfigMaps here are others: the pod would wait for it"
            yield name.found(what, f"there is {', '.join(sorted(config_maps))}")
        else:
            what = f"is {name.text!r}, which has to be in the namespace before: it is not here"
            yield name.found(what, f"kubectl get configmap {name.text}, or --check its file too", level="warning")


def _named(pod: Pod) -> Iterator[Field]:
    """The name of each ConfigMap that the pod cannot start without."""
    sources = [volume["configMap"] for volume in pod.spec["volumes"]]
    sources += [source["configMap"] for volume in pod.spec["volumes"] for source in volume.at("projected.sources")]
    for container in pod.containers:
        sources += [source["configMapRef"] for source in container["envFrom"]]
        sources += [variable.at("valueFrom.configMapKeyRef") for variable in container["env"]]
    return (source["name"] for source in sources if source["optional"].value is not True)


def runtime_reference(manifest: Manifest) -> Iterator[Found]:
    """The runtime of a TrainJob is in the file (an error where it is there as another kind)."""
    reference = manifest.spec["runtimeRef"]
    name, kind = reference["name"].text, reference["kind"].text or RUNTIMES[0]
    if manifest.kind != "TrainJob" or not name or manifest.runtime:
        return
    actual_kind = next(
        (
            manifest_beside.kind
            for manifest_beside in manifest.beside
            if manifest_beside.name == name and manifest_beside.kind in RUNTIMES
        ),
        None,
    )
    if actual_kind:
        yield reference.found(f"is a {kind}, and {name} here is a {actual_kind}", f"kind: {actual_kind}", level="error")
    else:
        what = f"is the {kind} {name}, which is not here: what it holds was not checked"
        yield reference["name"].found(what, f"kubectl get {kind.lower()} {name}, or --check its file too")


RULES = rules(container_name, replicated_job_reference, config_map, runtime_reference, warnings=(runtime_reference,))
