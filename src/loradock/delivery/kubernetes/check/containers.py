"""Rules on containers: the image, the environment, secrets in the open."""

from __future__ import annotations

import re
from collections.abc import Iterator

from loradock.delivery.kubernetes import names
from loradock.delivery.kubernetes.check.base import Manifest, rules
from loradock.delivery.kubernetes.check.command_line import arguments
from loradock.delivery.kubernetes.check.fields import Field, Found
from loradock.text import redact

_REFERENCE = re.compile(r"\$?\$\(([A-Z_][A-Z0-9_]*)\)")  # small letters are a shell's $(command)
_GIVEN = re.compile(r"JOB_COMPLETION_INDEX|PET_\w+|\w+_SERVICE_(?:HOST|PORT\w*)|\w+_PORT(?:_\w+)?")
_ITS_DIGEST = "docker image inspect --format '{{index .RepoDigests 0}}' IMAGE"
_PUT_AWAY = "kubectl create secret generic NAME --from-literal KEY=..., and valueFrom.secretKeyRef here"


def _images(manifest: Manifest) -> Iterator[Field]:
    return (container["image"] for pod in manifest.pods for container in pod.containers)


def image(manifest: Manifest) -> Iterator[Found]:
    """Each container names an image, by a name and a digest that can be one."""
    for pod in manifest.pods:
        for container in pod.containers:
            image = container["image"]
            if not image and container.members and not pod.is_partial and manifest.kind[-7:] != "Runtime":
                yield image.found("is missing", "image: REGISTRY/NAME@sha256:...")
            elif isinstance(image.value, str) and names.image(image.text) is not None:
                name, _, digest = image.text.partition("@")
                is_name = names.image(name) is None
                what = f"has an invalid digest: {digest!r}" if is_name else f"is {name!r}, not the name of an image"
                yield image.found(what, "image: REGISTRY/NAME@sha256:...")


def _tag(image: Field) -> str | None:
    """The tag of an image without a digest, "" where it has none; None where it is pinned, or no image."""
    name = image.text
    if "@" in name or names.image(name) is not None:
        return None
    return name.rpartition("/")[2].partition(":")[2]


def image_latest(manifest: Manifest) -> Iterator[Found]:
    """No image is named without a tag or as :latest."""
    for image in _images(manifest):
        if _tag(image) in ("", "latest"):
            remedy = f"name one build by its digest: {_ITS_DIGEST}"
            yield image.found(f"is {image.text}: another image each time it is pushed", remedy)


def image_digest(manifest: Manifest) -> Iterator[Found]:
    """Each image is named by its digest."""
    for image in _images(manifest):
        if _tag(image) not in (None, "", "latest"):
            yield image.found(f"is {image.text}: a tag can be moved, a digest cannot", _ITS_DIGEST)


def _variables(manifest: Manifest) -> Iterator[tuple[Field, list[Field]]]:
    for pod in manifest.pods:
        yield from ((container, list(container["env"])) for container in pod.containers)


def variable_reference(manifest: Manifest) -> Iterator[Found]:
    """What $(NAME) refers to is defined, and before it is used."""
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


def secret_variable(manifest: Manifest) -> Iterator[Found]:
    """No variable or argument holds a secret in the open."""
    for _, variables in _variables(manifest):
        for variable in variables:
            if _is_open(variable["name"].text, variable["value"].text):
                what = f"of {variable['name'].text} stands in the open, for all who may read the object"
                yield variable["value"].found(what, _PUT_AWAY)
    for container, _ in _variables(manifest):
        for word in arguments(container):
            if _is_open("", word.text):
                yield word.found("holds a secret in the open, for all who may read the object", _PUT_AWAY)


def secret_object(manifest: Manifest) -> Iterator[Found]:
    """No Secret or ConfigMap in the file holds a secret's value."""
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


RULES = rules(
    image, image_latest, image_digest, variable_reference, secret_variable, secret_object, warnings=(image_digest,)
)
