"""Rules on Services and nodes: that Services find the pods of the file, and that a pod fits somewhere."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.delivery.kubernetes.check.base import Manifest, Pod, rules
from loradock.delivery.kubernetes.check.fields import Field, Found

# What the controllers of Jobs and JobSets put on pods by themselves.
_CONTROLLERS = ("batch.kubernetes.io/", "jobset.sigs.k8s.io/", "trainer.kubeflow.org/")
_JOB_NAMES = ("job-name", "batch.kubernetes.io/job-name")
_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def _services(manifest: Manifest) -> list[Manifest]:
    return [manifest_beside for manifest_beside in manifest.beside if manifest_beside.kind == "Service"]


def service_selector(manifest: Manifest) -> Iterator[Found]:
    """A Service beside pods selects one of them.

    A selector that finds none of the pods beside it; without pods in the file nothing can be said.
    """
    pods = [
        (manifest_beside, pod)
        for manifest_beside in manifest.beside
        for pod in manifest_beside.pods
        if not pod.is_partial
    ]
    selector = manifest.spec["selector"]
    if manifest.kind != "Service" or not selector.members or not pods:
        return
    if not any(_selects(selector, _labels(owner, pod)) for owner, pod in pods):
        key, field = next(_unmet(selector, [_labels(owner, pod) for owner, pod in pods]))
        label_values = sorted({labels[key] for labels in (_labels(*pod_of) for pod_of in pods) if key in labels})
        remedy = f"{key}: {label_values[0]}" if label_values else f"add the label {key} to the pods"
        yield field.found(f"is {field.text!r}, and no pod of this file is labelled so: the Service finds none", remedy)


def _unmet(selector: Field, pods: list[dict[str, str]]) -> Iterator[tuple[str, Field]]:
    """The parts of a selector that no pod meets, and then every part."""
    yield from ((key, field) for key, field in selector.members if all(pod.get(key) != field.text for pod in pods))
    yield from selector.members


def _labels(owner: Manifest, pod: Pod) -> dict[str, str]:
    """A pod's labels: its own, and those that the controllers add where the file lets one know them."""
    labels = {key: field.text for key, field in pod.metadata["labels"].members}
    if owner.kind == "Job":
        labels |= dict.fromkeys(_JOB_NAMES, owner.name)
    if owner.kind == "JobSet":
        labels |= {_JOBSET_NAME: owner.name}
    return labels


def _selects(selector: Field, labels: dict[str, str]) -> bool:
    return all(
        labels[key] == field.text if key in labels else key.startswith(_CONTROLLERS) for key, field in selector.members
    )


def headless_service(manifest: Manifest) -> Iterator[Found]:
    """A pod's subdomain is a headless Service of the file."""
    for pod in manifest.pods:
        subdomain = pod.spec["subdomain"]
        if not subdomain.text or manifest.replicated_jobs:  # JobSet makes the Service itself
            continue
        services = [service for service in _services(manifest) if service.name == subdomain.text]
        if not services:
            what = f"is {subdomain.text}, and the file has no Service of that name: the pods' host names lead nowhere"
            yield subdomain.found(what, f"add a Service {subdomain.text} with clusterIP: None")
        elif all(service.spec["clusterIP"].text != "None" for service in services):
            what = f"is {subdomain.text}, and the Service of that name has an address of its own: pods get no host name"
            yield subdomain.found(what, f"clusterIP: None, in quotes or not, in the Service {subdomain.text}")


def own_selector(manifest: Manifest) -> Iterator[Found]:
    """A controller's selector finds the pods of its own template.

    A controller's selector (a Deployment's, a StatefulSet's) that does not find the pods of its own template.
    """
    template = manifest.spec["template"]
    labels = {key: field.text for key, field in template.at("metadata.labels").members}
    if template:
        for key, field in manifest.spec.at("selector.matchLabels").members:
            if labels.get(key) != field.text:
                yield field.found(
                    f"is {field.text!r}, and the template's label is {labels.get(key)!r}", "make them one"
                )


def topology_spread(manifest: Manifest) -> Iterator[Found]:
    """A spread constraint selects the pod that it is written in."""
    for pod in manifest.pods:
        labels = {key: field.text for key, field in pod.metadata["labels"].members}
        for constraint in pod.spec["topologySpreadConstraints"]:
            selector = constraint["labelSelector"]
            unmet = [key for key, field in selector["matchLabels"].members if labels.get(key) != field.text]
            if unmet:
                what = f"does not select this pod itself, by {unmet[0]}: it would not be counted"
                yield selector.found(what, "use the labels of the pod's own metadata")


def node_selector(manifest: Manifest) -> Iterator[Found]:
    """A node selector does not contradict the pod's affinity or node."""
    for pod in manifest.pods:
        terms = list(pod.spec.at(_TERMS))
        for key, field in pod.spec["nodeSelector"].members:
            if terms and all(_forbids(term, key, field.text) for term in terms):
                what = f"is {field.text!r}, and the pod's own nodeAffinity takes no such node: it fits nowhere"
                yield field.found(what, "keep one of the two")
        yield from _named_node(pod)


def _forbids(term: Field, key: str, value: str) -> bool:
    """True where a term of an affinity excludes nodes whose label `key` is `value`."""
    for expression in term["matchExpressions"]:
        if expression["key"].text != key:
            continue
        values = {entry.text for entry in expression["values"]}
        operator = expression["operator"].text
        if operator == "DoesNotExist" or (operator == "In" and value not in values):
            return True
        if operator == "NotIn" and value in values:
            return True
    return False


def _named_node(pod: Pod) -> Iterator[Found]:
    name = pod.spec["nodeName"]
    host = pod.spec["nodeSelector"]["kubernetes.io/hostname"]
    if name.text and host.text and name.text != host.text:
        yield host.found(f"is {host.text!r}, and nodeName is {name.text!r}", "keep one of the two")


RULES = rules(topology_spread, node_selector, service_selector, own_selector, headless_service)
