"""Rules on names across objects: ConfigMaps, and the runtime of a TrainJob."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.kubernetes.check.base import (
    RUNTIMES,
    Manifest,
    Pod,
    Rule,
)
from loradock.kubernetes.check.fields import Field, Found

_OF_EVERY_NAMESPACE = "kube-root-ca.crt"


def _config_maps(manifest: Manifest) -> Iterator[Found]:
    """What no file has may be in the cluster; beside other ConfigMaps it is rather a slip of the pen."""
    there = [other.name for other in manifest.beside if other.kind == "ConfigMap"]
    for name in (name for pod in manifest.pods for name in _named(pod)):
        if not name.text or name.text == _OF_EVERY_NAMESPACE or manifest.neighbour("ConfigMap", name.text):
            continue
        if name.text in there:
            yield name.found(f"is {name.text}, which is in another namespace", "write one metadata.namespace in both")
        elif there:
            what = f"is {name.text!r}, and the ConfigMaps here are others: the pod would wait for it"
            yield name.found(what, f"there is {', '.join(sorted(there))}")
        else:
            what = f"is {name.text!r}, which has to be in the namespace before: it is not here"
            yield name.found(what, f"kubectl get configmap {name.text}, or --check its file too", level="warning")


def _named(pod: Pod) -> Iterator[Field]:
    """The name of each ConfigMap that the pod cannot start without."""
    sources = [volume["configMap"] for volume in pod.spec["volumes"]]
    sources += [source["configMap"] for volume in pod.spec["volumes"] for source in volume.at("projected.sources")]
    for container in pod.containers:
        sources += [each["configMapRef"] for each in container["envFrom"]]
        sources += [each.at("valueFrom.configMapKeyRef") for each in container["env"]]
    return (source["name"] for source in sources if source["optional"].value is not True)


def _runtime(manifest: Manifest) -> Iterator[Found]:
    reference = manifest.spec["runtimeRef"]
    name, kind = reference["name"].text, reference["kind"].text or RUNTIMES[0]
    if manifest.kind != "TrainJob" or not name or manifest.runtime:
        return
    other = next((each.kind for each in manifest.beside if each.name == name and each.kind in RUNTIMES), None)
    if other:
        yield reference.found(f"is a {kind}, and {name} here is a {other}", f"kind: {other}", level="error")
    else:
        what = f"is the {kind} {name}, which is not here: what it holds was not checked"
        yield reference["name"].found(what, f"kubectl get {kind.lower()} {name}, or --check its file too")


RULES = (
    Rule(
        name="config-map",
        says="A ConfigMap that a pod needs is in the file (a warning where the file has none at all).",
        look=_config_maps,
    ),
    Rule(
        name="runtime-reference",
        says="The runtime of a TrainJob is in the file (an error where it is there as another kind).",
        look=_runtime,
        level="warning",
    ),
)
