"""Rules on where pods may run: spread, node selectors, affinities, tolerations."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.kubernetes.check.base import Manifest, Pod, Rule
from loradock.kubernetes.check.fields import Field, Found

_TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def _spread(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        labels = {key: field.text for key, field in pod.metadata["labels"].members}
        for constraint in pod.spec["topologySpreadConstraints"]:
            selector = constraint["labelSelector"]
            unmet = [key for key, field in selector["matchLabels"].members if labels.get(key) != field.text]
            if constraint.members and not selector:
                yield constraint.found(
                    "has no labelSelector: it counts no pod, and spreads none", "labelSelector: matchLabels"
                )
            elif unmet:
                what = f"does not select this pod itself, by {unmet[0]}: it would not be counted"
                yield selector.found(what, "use the labels of the pod's own metadata")


def _conflicts(manifest: Manifest) -> Iterator[Found]:
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


def _tolerations(manifest: Manifest) -> Iterator[Found]:
    for toleration in (toleration for pod in manifest.pods for toleration in pod.spec["tolerations"]):
        operator = toleration["operator"].text or "Equal"
        if operator == "Exists" and toleration["value"].text:
            yield toleration["value"].found(
                "stands beside operator Exists, which takes none", "delete it, or operator: Equal"
            )
        elif operator == "Equal" and toleration.members and not toleration["key"].text:
            yield toleration.found("has no key", "add the taint's key; operator: Exists alone tolerates every taint")


RULES = (
    Rule(name="topology-spread", says="A spread constraint selects the pod that it is written in.", look=_spread),
    Rule(name="node-selector", says="A node selector does not contradict the pod's affinity or node.", look=_conflicts),
    Rule(name="toleration", says="A toleration has a key or is for all, and Exists takes no value.", look=_tolerations),
)
