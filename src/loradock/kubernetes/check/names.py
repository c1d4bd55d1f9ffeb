"""Rules on names: objects, replicated jobs, containers, volumes, labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from loradock.kubernetes import names
from loradock.kubernetes.check.base import Manifest, Rule
from loradock.kubernetes.check.fields import Field, Found

REPLICATED_JOB_CHARACTERS = 20
_LONGEST = {"Job": 63, "CronJob": 52, "Service": 63, "JobSet": 63, "TrainJob": 63, "Namespace": 63, "StatefulSet": 52}
_FROM_LETTER = {"Service", "JobSet", "TrainJob"}


def _objects(manifest: Manifest) -> Iterator[Found]:
    if manifest.kind in ("", "List"):
        return
    metadata = manifest.root["metadata"]
    if not metadata["name"] and not metadata["generateName"]:
        yield metadata["name"].found("is missing", f"add metadata.name to this {manifest.kind}")
    elif isinstance(metadata["name"].value, str):
        yield from _object_name(metadata["name"], kind=manifest.kind)
    yield from _label_of(metadata["namespace"])


def _object_name(name: Field, *, kind: str) -> Iterator[Found]:
    longest = _LONGEST.get(kind, names.NAME_CHARACTERS)
    form = names.FROM_LETTER if kind in _FROM_LETTER else names.LABEL if kind in _LONGEST else names.SUBDOMAIN
    if not form.fullmatch(name.text):
        yield name.found(f"is {name.text!r}, which RFC 1123 does not allow", _form(name.text, from_letter=kind))
    elif len(name.text) > longest:
        what = f"has {len(name.text)} characters, and a {kind} takes {longest}: its pods carry the name in a label"
        yield name.found(what if longest <= names.LABEL_CHARACTERS else what.partition(":")[0], "shorten it")


def _form(text: str, *, from_letter: str = "") -> str:
    begins = "begins with a letter" if from_letter in _FROM_LETTER else "begins and ends with a letter or digit"
    safe = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return f"small letters, digits and dashes; {begins}" + (f": {safe}" if safe and safe != text else "")


def _label_of(field: Field) -> Iterator[Found]:
    """What is wrong with a name that has to be a DNS label."""
    if not isinstance(field.value, str):
        return
    if not names.LABEL.fullmatch(field.text):
        yield field.found(f"is {field.text!r}, which RFC 1123 does not allow", _form(field.text))
    elif len(field.text) > names.LABEL_CHARACTERS:
        yield field.found(f"has {len(field.text)} characters, and a name takes {names.LABEL_CHARACTERS}", "shorten it")


def _twice(fields: Iterable[Field], *, among: str) -> Iterator[Found]:
    seen: dict[str, int] = Counter()
    for field in fields:
        seen[field.text] += 1
        if field.text and seen[field.text] == 2:
            yield field.found(f"is {field.text!r}, and so is another of the {among}", "give each its own name")


def _replicated_jobs(manifest: Manifest) -> Iterator[Found]:
    own = [job["name"] for job in manifest.replicated_jobs]
    for name in own:
        wrong = list(_label_of(name))
        if not wrong and len(name.text) > REPLICATED_JOB_CHARACTERS:
            what = f"has {len(name.text)} characters: with the JobSet's name and two indexes it is a pod's host name"
            wrong = [name.found(what, f"at most {REPLICATED_JOB_CHARACTERS}: node")]
        yield from wrong
    yield from _twice(own, among="replicated jobs")


def _references(manifest: Manifest) -> Iterator[Found]:
    """Names of replicated jobs that other fields of a JobSet use."""
    if manifest.kind != "JobSet":
        return
    known = {job["name"].text for job in manifest.replicated_jobs}
    spec = manifest.spec
    used = [spec.at("coordinator.replicatedJob"), *spec.at("successPolicy.targetReplicatedJobs")]
    used += [name for rule in spec.at("failurePolicy.rules") for name in rule["targetReplicatedJobs"]]
    for job in manifest.replicated_jobs:
        used += [before["name"] for before in job["dependsOn"]]
    for name in used:
        if name.text and name.text not in known:
            yield name.found(f"names {name.text!r}, which is no replicated job of this JobSet", _one_of(known))


def _one_of(known: set[str]) -> str:
    return f"there is {', '.join(sorted(known - {''}))}" if known - {""} else "there is none"


def _containers(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        own = [container["name"] for container in pod.containers if container is not pod.trainer]
        for name in own:
            yield from _label_of(name)
        yield from _twice(own, among="pod's containers")


def _volumes(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        own = [volume["name"] for volume in pod.spec["volumes"]]
        for name in own:
            yield from _label_of(name)
        yield from _twice(own, among="pod's volumes")


def _labels(manifest: Manifest) -> Iterator[Found]:
    bearers = [manifest.root["metadata"], *(pod.metadata for pod in manifest.pods)]
    places = [bearer["labels"] for bearer in bearers]
    places += [manifest.spec["selector"]] if manifest.kind == "Service" else []
    places += [pod.spec["nodeSelector"] for pod in manifest.pods]
    for place in dict.fromkeys(place.path for place in places):
        yield from _label_pairs(next(field for field in places if field.path == place))
    for bearer in bearers[: 1 if manifest.kind == "Pod" else None]:
        for key, field in bearer["annotations"].members:
            yield from _label_key(key, field)


def _label_pairs(labels: Field) -> Iterator[Found]:
    for key, value in labels.members:
        yield from _label_key(key, value)
        if (wanted := names.label_value(value.text)) is not None:
            yield value.found(f"is {value.text!r}, which no label may be", f"{wanted}; else an annotation")


def _label_key(key: str, field: Field) -> Iterator[Found]:
    if (wanted := names.label_key(key)) is not None:
        yield field.found("has a key that Kubernetes refuses", wanted)


RULES = (
    Rule(name="object-name", says="metadata.name and namespace are names after RFC 1123, short enough.", look=_objects),
    Rule(
        name="replicated-job-name",
        says=f"A replicated job has a name of {REPLICATED_JOB_CHARACTERS} characters at most, and its own.",
        look=_replicated_jobs,
    ),
    Rule(
        name="replicated-job-reference",
        says="What a JobSet says of a replicated job names one that it has.",
        look=_references,
    ),
    Rule(
        name="container-name", says="Each container of a pod has a name of its own, after RFC 1123.", look=_containers
    ),
    Rule(name="volume-name", says="Each volume of a pod has a name of its own, after RFC 1123.", look=_volumes),
    Rule(
        name="label", says="Labels, node selectors and the keys of annotations are what Kubernetes takes.", look=_labels
    ),
)
