"""Rules on containers: that there is one, its image, its environment, secrets in the open."""

from __future__ import annotations

import re
from collections.abc import Iterator

from loradock import redact
from loradock.kubernetes import names
from loradock.kubernetes.check.base import Manifest, Rule
from loradock.kubernetes.check.command_line import arguments
from loradock.kubernetes.check.fields import Field, Found

_REFERENCE = re.compile(r"\$?\$\(([A-Z_][A-Z0-9_]*)\)")  # small letters are a shell's $(command)
_GIVEN = re.compile(r"JOB_COMPLETION_INDEX|PET_\w+|\w+_SERVICE_(?:HOST|PORT\w*)|\w+_PORT(?:_\w+)?")
_ITS_DIGEST = "docker image inspect --format '{{index .RepoDigests 0}}' IMAGE"
_PUT_AWAY = "kubectl create secret generic NAME --from-literal KEY=..., and valueFrom.secretKeyRef here"


def _present(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        if not pod.is_partial and not any(container.members for container in pod.spec["containers"]):
            yield pod.spec["containers"].found("lists no container: nothing would run", "add one with name and image")
    if manifest.kind in ("Job", "CronJob", "Pod", "JobSet") and not manifest.pods:
        yield manifest.spec.found("holds no pod", "loradock render job --demo shows a whole one")


def _images(manifest: Manifest) -> Iterator[Field]:
    return (container["image"] for pod in manifest.pods for container in pod.containers)


def _image(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        for container in pod.containers:
            image = container["image"]
            if not image and container.members and not pod.is_partial and manifest.kind[-7:] != "Runtime":
                yield image.found("is missing", "image: REGISTRY/NAME@sha256:...")
            elif isinstance(image.value, str) and names.image(image.text) is not None:
                name, _, digest = image.text.partition("@")
                is_name = names.image(name) is None
                what = f"has a digest that is none: {digest!r}" if is_name else f"is {name!r}, which is no image's name"
                yield image.found(what, "image: REGISTRY/NAME@sha256:...")


def _tag(image: Field) -> str | None:
    """The tag of an image without a digest, "" where it has none; None where it is pinned, or no image."""
    name = image.text
    if "@" in name or names.image(name) is not None:
        return None
    return name.rpartition("/")[2].partition(":")[2]


def _latest(manifest: Manifest) -> Iterator[Found]:
    for image in _images(manifest):
        if _tag(image) in ("", "latest"):
            remedy = f"name one build by its digest: {_ITS_DIGEST}"
            yield image.found(f"is {image.text}: another image each time it is pushed", remedy)


def _digest(manifest: Manifest) -> Iterator[Found]:
    for image in _images(manifest):
        if _tag(image) not in (None, "", "latest"):
            yield image.found(f"is {image.text}: a tag can be moved, a digest cannot", _ITS_DIGEST)


def _variables(manifest: Manifest) -> Iterator[tuple[Field, list[Field]]]:
    for pod in manifest.pods:
        yield from ((container, list(container["env"])) for container in pod.containers)


def _twice(manifest: Manifest) -> Iterator[Found]:
    for _, variables in _variables(manifest):
        seen: set[str] = set()
        for variable in variables:
            name = variable["name"]
            if name.text in seen:
                yield name.found(f"is {name.text} a second time: the last one wins", "delete one of the two")
            seen.add(name.text)


def _one_source(manifest: Manifest) -> Iterator[Found]:
    for _, variables in _variables(manifest):
        for variable in variables:
            sources = [name for name, field in variable["valueFrom"].members if field]
            if variable["value"].text and variable["valueFrom"]:
                yield variable["valueFrom"].found("stands beside a value", "keep one of the two")
            elif variable["valueFrom"] and len(sources) != 1:
                what = f"names {' and '.join(sources) or 'no source'}"
                yield variable["valueFrom"].found(
                    what, "one of secretKeyRef, configMapKeyRef, fieldRef, resourceFieldRef"
                )


def _references(manifest: Manifest) -> Iterator[Found]:
    for container, variables in _variables(manifest):
        if container["envFrom"]:
            continue  # what it brings is not in this container
        known = {variable["name"].text for variable in variables}
        earlier: set[str] = set()
        for variable in variables:
            yield from _unknown(variable["value"], known=earlier)
            earlier.add(variable["name"].text)
        for word in arguments(container):
            yield from _unknown(word, known=known)


def _unknown(field: Field, *, known: set[str]) -> Iterator[Found]:
    for reference in _REFERENCE.finditer(field.text):
        name = reference.group(1)
        if reference.group().startswith("$(") and name not in known and not _GIVEN.fullmatch(name):
            remedy = f"add {name} to env, before what uses it; $$({name}) is the plain text"
            yield field.found(f"uses $({name}), which is not defined at this place", remedy)


def _is_open(name: str, value: str) -> bool:
    """True where a text is a secret by its name or by its form; a path or a reference is none."""
    is_secret = bool(redact.of({name: value})) or redact.without(value, {}) != value
    return is_secret and not value.startswith(("/", "$("))


def _open_variables(manifest: Manifest) -> Iterator[Found]:
    for _, variables in _variables(manifest):
        for variable in variables:
            if _is_open(variable["name"].text, variable["value"].text):
                what = f"of {variable['name'].text} stands in the open, for all who may read the object"
                yield variable["value"].found(what, _PUT_AWAY)
    for container, _ in _variables(manifest):
        for word in arguments(container):
            if _is_open("", word.text):
                yield word.found("holds a secret in the open, for all who may read the object", _PUT_AWAY)


def _open_objects(manifest: Manifest) -> Iterator[Found]:
    data = manifest.root["data"].members if manifest.kind in ("ConfigMap", "Secret") else ()
    if manifest.kind == "Secret":
        for _, field in (*data, *manifest.root["stringData"].members):
            if field.text:
                remedy = "keep the value out of files: kubectl create secret generic NAME --from-file KEY=FILE"
                yield field.found("stands in this file, base64 or not", remedy)
    elif manifest.kind == "ConfigMap":
        for key, field in data:
            if _is_open("" if "." in key else key, field.text):
                yield field.found("holds a secret, and a ConfigMap is not guarded as a Secret is", _PUT_AWAY)


RULES = (
    Rule(name="containers", says="A pod has a container.", look=_present),
    Rule(name="image", says="Each container names an image, by a name and a digest that can be one.", look=_image),
    Rule(name="image-latest", says="No image is named without a tag or as :latest.", look=_latest),
    Rule(name="image-digest", says="Each image is named by its digest.", look=_digest, level="warning"),
    Rule(name="variable-twice", says="No variable of a container is set twice.", look=_twice),
    Rule(name="variable-source", says="A variable has a value or one source.", look=_one_source),
    Rule(name="variable-reference", says="What $(NAME) refers to is defined, and before it is used.", look=_references),
    Rule(name="secret-variable", says="No variable or argument holds a secret in the open.", look=_open_variables),
    Rule(name="secret-object", says="No Secret or ConfigMap in the file holds a secret's value.", look=_open_objects),
)
