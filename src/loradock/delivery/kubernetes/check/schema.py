"""Rules `kind` and `schema`: the published schema of the object's kind, read strictly.

Kubernetes' own kinds come from the schemas that the package kubernetes-validate carries. Its own call stops at the
first error and passes over a kind that it does not know, so the schemas go to jsonschema here. `crds.yaml` has JobSet,
TrainJob and training runtimes, `api_server.yaml` what the API server refuses beyond its own schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

import yaml

from loradock.delivery.kubernetes.check.base import Manifest, rules
from loradock.delivery.kubernetes.check.fields import Field, Found, shown
from loradock.errors import EnvironmentUnfit
from loradock.text.suggest import did_you_mean, nearest, sentence

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

KUBERNETES = "1.37"
_VERSIONS = "x-kubernetes-group-version-kind"
_TYPE_NAMES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_PATCHES = "since Trainer 2.2: runtimePatches, a list of {manager, trainingRuntimeSpec}"
_GONE = {
    **dict.fromkeys(("podTemplateOverrides", "podSpecOverrides", "templateOverrides"), _PATCHES),
    "datasetConfig": "since Trainer 2.0: initializer.dataset",
    "modelConfig": "since Trainer 2.0: initializer.model",
}


def kind(manifest: Manifest) -> Iterator[Found]:
    """Each object names an apiVersion and a kind whose schema is known."""
    root = manifest.root
    for name, example in (("apiVersion", "batch/v1"), ("kind", "Job")):
        if not root[name].text:
            yield root[name].found("is missing, so the kind of object is unknown", f"write {name}: {example}")
            return
    if manifest.kind == "List":
        yield root["items"].found("is not a list of objects", "begin each with a dash, or divide them by --- lines")
    elif _validator(root["apiVersion"].text, manifest.kind) is None:
        what = f"is {manifest.kind} of {root['apiVersion'].text}, an unknown kind: nothing in it was checked"
        near = nearest(manifest.kind, _known_kinds())
        remedy = sentence(*_known_kinds()[near]) if near else "kubectl apply --dry-run=server --filename FILE"
        yield root["kind"].found(what, remedy)


def schema(manifest: Manifest) -> Iterator[Found]:
    """Every field is one that the kind has, none that it needs is missing, and each value is one that it takes."""
    validator = _validator(manifest.root["apiVersion"].text, manifest.kind)
    problems: set[tuple[object, ...]] = set()
    for error in validator.iter_errors(_without_nulls(manifest.root.value)) if validator else ():
        place = (*error.absolute_path, error.validator)
        if error.validator in ("additionalProperties", "required") or place not in problems:
            yield from _told(error, manifest.root)
        problems.add(place)


def _without_nulls(value: object) -> Any:
    """The value without what is null, which Kubernetes takes for absent; places in lists stay."""
    if isinstance(value, dict):
        return {key: _without_nulls(below) for key, below in value.items() if below is not None}
    return [_without_nulls(below) for below in value] if isinstance(value, list) else value


def _told(error: ValidationError, root: Field) -> Iterator[Found]:
    """An error of the schema in our words, at its place."""
    place = Field(error.instance, (*root.path, *error.absolute_path))
    schema, expected = cast("dict[str, Any]", error.schema), cast("Any", error.validator_value)
    if error.validator == "additionalProperties":
        known = list(schema.get("properties", {}))
        unknown = [name for name, _ in place.members if name not in known]
        yield from (place[name].found("is an unknown field", _meant(name, known)) for name in unknown)
    elif "propertyNames" in list(error.absolute_schema_path)[-2:]:
        key = Field(None, (*root.path, *error.absolute_path, str(error.instance)))
        yield key.found(schema["what"], schema["remedy"])
    elif error.validator == "maxLength" and expected:
        yield place.found(f"has {len(place.text)} characters, {expected} at most", "shorten it")
    elif "what" in schema:
        is_single = not isinstance(error.instance, dict | list)
        what = f"is {error.instance!r}, {schema['what']}" if is_single else schema["what"]
        yield place.found(what, schema["remedy"] + _as_name(error))
    elif error.validator == "required":
        missing = [name for name in expected if name not in error.instance]
        yield from (place.found(f"lacks {name}", f"add {name}: to {shown(place.path)}") for name in missing)
    else:
        what, remedy = _said(error, place, expected)
        yield place.found(what, schema.get("remedy", remedy))


def _said(error: ValidationError, place: Field, expected: Any) -> tuple[str, str]:
    """What a keyword without words of its own finds, and a remedy."""
    if error.validator == "enum":
        remedy = did_you_mean(place.text, map(str, expected)) or f"one of {', '.join(map(str, expected))}"
        return f"is {error.instance!r}, an unknown value", remedy
    if error.validator in ("minimum", "maximum"):
        limits = cast("dict[str, Any]", error.schema)
        most = f"to {limits['maximum']}" if "maximum" in limits else "or more"
        return f"is {error.instance!r}, out of range", f"write {limits['minimum']} {most}"
    if error.validator in ("x-kubernetes-list-map-keys", "ascending"):
        return error.message, "each entry needs its own"
    if error.validator == "oneOf":
        return f"is {_type(place)}, not text or a number", "write one value"
    types = [_TYPE_NAMES[name] for name in _listed(expected) if name in _TYPE_NAMES]
    return f"is {_type(place)}, not {' or '.join(types) or expected}", _cure(place, types)


def _as_name(error: ValidationError) -> str:
    """`: my-name` for a name that is refused, where small letters and dashes make it one."""
    safe = re.sub(r"[^a-z0-9]+", "-", str(error.instance).lower()).strip("-")
    is_one = error.validator == "pattern" and "RFC" in str(error.schema) and safe and safe != error.instance
    return f": {safe}" if is_one else ""


def _cure(place: Field, suggestions: list[str]) -> str:
    if suggestions == ["text"] and not isinstance(place.value, list | dict):
        return "put it in quotes; unquoted, a number or a word like yes, on, true is not text"
    if suggestions == ["a list"]:
        return "begin each entry with a dash"
    if isinstance(place.value, str) and suggestions != ["a mapping"]:
        return "write it without quotes"
    return f"write {' or '.join(suggestions) or 'what the schema takes'} here"


def _meant(name: str, known: list[str]) -> str:
    if name in _GONE:
        return _GONE[name]
    return did_you_mean(name, known) or f"known here: {', '.join(sorted(known)[:12]) or 'nothing'}"


def _type(place: Field) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
    return "a mapping" if isinstance(place.value, dict) else names.get(type(place.value), "nothing")


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


@cache
def _definitions() -> dict[str, Any]:
    """Every definition by its name, with what `api_server.yaml` lays over it.

    Raises EnvironmentUnfit where the package that carries Kubernetes' own is missing or too old.
    """
    try:
        place = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local-strict"
        definitions = json.loads((place / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    except (ModuleNotFoundError, FileNotFoundError) as error:
        remedy = f"pip install 'kubernetes-validate>={KUBERNETES}'"
        raise EnvironmentUnfit(f"the schemas of Kubernetes {KUBERNETES} are not installed", hint=remedy) from error
    definitions |= _data("crds.yaml")
    for name, beyond in _data("api_server.yaml").items():
        definitions.setdefault(name, {})["allOf"] = [beyond]
    return definitions


def _data(name: str) -> dict[str, Any]:
    return yaml.safe_load((files("loradock.delivery.kubernetes.check") / name).read_text(encoding="utf-8"))


@cache
def _known_kinds() -> dict[str, list[str]]:
    """Each kind that is known, as its apiVersion and name, by its name in small letters."""
    known: dict[str, list[str]] = {}
    for definition in _definitions().values():
        for names in definition.get(_VERSIONS, ()):
            version = "/".join(part for part in (names["group"], names["version"]) if part)
            known.setdefault(names["kind"].lower(), []).append(f"{version} {names['kind']}")
    return known


@cache
def _validator(version: str, kind: str) -> Validator | None:
    """What checks an object of this kind, or None where no schema is at hand."""
    group, _, number = version.rpartition("/")
    identity = {"group": group, "version": number, "kind": kind}
    name = next(
        (name for name, definition in _definitions().items() if identity in definition.get(_VERSIONS, ())), None
    )
    if name is None:
        return None
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    keywords = {"enum": _one_of, "ascending": _ascending, "x-kubernetes-list-map-keys": _unique}
    root = {"$id": "file:///api/_definitions.json", "$defs": _definitions()}
    references = [{"$ref": f"#/$defs/{name_of}"} for name_of in (name, "Object")]
    return extend(Draft202012Validator, keywords)({**root, "allOf": references})


def _one_of(_: Validator, allowed: list[Any], value: object, __: object) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if value != "" and value not in allowed:
        yield ValidationError("enum")


def _ascending(_: Validator, __: bool, values: object, ___: object) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    last = -1
    for index, value in enumerate(values if isinstance(values, list) else ()):
        if isinstance(value, int) and value <= last:
            yield ValidationError(f"is {value} after {last}: exit codes stand in order, each once", path=[index])
        last = max(last, value) if isinstance(value, int) else last


def _unique(_: Validator, keys: list[str], entries: object, __: object) -> Iterator[ValidationError]:
    """Entries that Kubernetes tells apart by these keys; one without the first is another finding."""
    from jsonschema.exceptions import ValidationError

    entries_seen: list[list[Any]] = []
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        values: list[Any] = [entry.get(key) for key in keys] if isinstance(entry, dict) else [None]
        value = [value.rstrip("/") if isinstance(value, str) else value for value in values]  # /data/ is /data
        if value[0] is not None and value in entries_seen:
            yield ValidationError(f"is {value[0]!r} a second time in this list", path=[index, keys[0]])
        entries_seen.append(value)


RULES = rules(kind, schema)
