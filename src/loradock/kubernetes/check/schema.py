"""Rules `kind` and `schema`: the published schema of the object's kind, read strictly.

Kubernetes' own kinds come from the schemas that the package kubernetes-validate carries. Its own call stops at the
first error and passes over a kind that it does not know, so the schemas go to jsonschema here. JobSet, TrainJob and
training runtimes are in `custom_resources`; what they hold of Kubernetes' own is checked against its schema.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from loradock.errors import EnvironmentUnfit
from loradock.kubernetes.check.base import Manifest, Rule
from loradock.kubernetes.check.custom_resources import KINDS, SCHEMAS, Type
from loradock.kubernetes.check.fields import Field, Found, shown

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

KUBERNETES = "1.37"
_DEFINITIONS = "/api/_definitions.json"
_TYPE_NAMES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_GONE = {
    "podTemplateOverrides": "since Trainer 2.2: runtimePatches, a list of {manager, trainingRuntimeSpec}",
    "podSpecOverrides": "since Trainer 2.2: runtimePatches, a list of {manager, trainingRuntimeSpec}",
    "templateOverrides": "since Trainer 2.2: runtimePatches, a list of {manager, trainingRuntimeSpec}",
    "datasetConfig": "since Trainer 2.0: initializer.dataset",
    "modelConfig": "since Trainer 2.0: initializer.model",
}


def _kinds(manifest: Manifest) -> Iterator[Found]:
    root = manifest.root
    for name in ("apiVersion", "kind"):
        if not root[name].text:
            example = {"apiVersion": "batch/v1", "kind": "Job"}[name]
            yield root[name].found("is missing, so nobody knows what this is", f"write {name}: {example}")
            return
    if manifest.kind == "List":
        yield root["items"].found("is no list of objects", "begin each object with a dash, or divide them by --- lines")
    elif _validator(root["apiVersion"].text, manifest.kind) is None:
        what = f"is {manifest.kind} of {root['apiVersion'].text}, which is unknown here: nothing in it was checked"
        near = difflib.get_close_matches(manifest.kind.lower(), _known_kinds(), n=1)
        known = [full for kind in near for full in _known_kinds()[kind]]
        remedy = f"did you mean {' or '.join(known)}?" if known else "kubectl apply --dry-run=server --filename FILE"
        yield root["kind"].found(what, remedy)


def _fields(manifest: Manifest) -> Iterator[Found]:
    validator = _validator(manifest.root["apiVersion"].text, manifest.kind)
    if validator is None:
        return
    for error in validator.iter_errors(cast("Any", manifest.root.value)):
        yield from _told(error, manifest.root)


def _told(error: ValidationError, root: Field) -> Iterator[Found]:
    """An error of the schema in our words, at its place."""
    place = Field(error.instance, (*root.path, *error.absolute_path))
    wanted_by: Any = error.validator_value
    if error.validator == "additionalProperties":
        schema: Any = error.schema
        known = list(schema.get("properties", {}))
        unknown = [name for name, _ in place.members if name not in known]
        yield from (place[name].found("is no field that Kubernetes knows", _meant(name, known)) for name in unknown)
    elif error.validator == "required":
        missing = [name for name in wanted_by if name not in error.instance]
        yield from (place.found(f"lacks {name}", f"add {name}: to {shown(place.path)}") for name in missing)
    elif error.validator == "enum":
        yield place.found(f"is {error.instance!r}", f"write {' or '.join(map(str, wanted_by))}")
    elif error.validator == "oneOf":
        yield place.found(f"is {_type(place)}, not text or a number", "write one value")
    else:
        wanted = [_TYPE_NAMES[name] for name in _listed(wanted_by) if name in _TYPE_NAMES]
        yield place.found(f"is {_type(place)}, not {' or '.join(wanted) or wanted_by}", _cure(place, wanted))


def _cure(place: Field, wanted: list[str]) -> str:
    if wanted == ["text"] and not isinstance(place.value, list | dict):
        return "put it in quotes; unquoted, a number or a word like yes, on, true is no text"
    if wanted == ["a list"]:
        return "begin each entry with a dash"
    if isinstance(place.value, str) and wanted != ["a mapping"]:
        return "write it without quotes"
    return f"write {' or '.join(wanted) or 'what the schema takes'} here"


def _meant(name: str, known: list[str]) -> str:
    if name in _GONE:
        return _GONE[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known)[:12]) or 'nothing'}"


def _type(place: Field) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
    return "a mapping" if isinstance(place.value, dict) else names.get(type(place.value), "nothing")


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


@cache
def _definitions() -> dict[str, Any]:
    """Kubernetes' definitions, by their long names, and those of custom resources by short ones.

    Raises EnvironmentUnfit where the package that carries them is missing or too old.
    """
    try:
        place = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local-strict"
        kubernetes = json.loads((place / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    except (ModuleNotFoundError, FileNotFoundError) as error:
        remedy = f"pip install 'kubernetes-validate>={KUBERNETES}'"
        raise EnvironmentUnfit(f"the schemas of Kubernetes {KUBERNETES} are not installed", hint=remedy) from error
    own = {name: _expanded(fields) for name, fields in SCHEMAS.items()}
    return {**kubernetes, **own}


def _expanded(fields: Mapping[str, Type]) -> dict[str, Any]:
    """The short notation of a custom resource as JSON Schema."""
    return {
        "type": ["object", "null"],
        "properties": {name.rstrip("!"): _reference(type_) for name, type_ in fields.items()},
        "required": [name.rstrip("!") for name in fields if name.endswith("!")],
        "additionalProperties": False,
    }


def _reference(type_: Type) -> dict[str, Any]:
    if isinstance(type_, list):
        return {"type": ["array", "null"], "items": _reference(type_[0])}
    if type_ in _TYPE_NAMES:
        return {"type": [type_, "null"]}
    if type_ == "texts":
        return {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
    return {} if type_ == "any" else {"$ref": f"#/$defs/{type_}"}


@cache
def _known_kinds() -> dict[str, list[str]]:
    """Each kind that is known, as its apiVersion and name, by its name in small letters."""
    known: dict[str, list[str]] = {}
    for definition in _definitions().values():
        for names in definition.get("x-kubernetes-group-version-kind", ()):
            version = "/".join(part for part in (names["group"], names["version"]) if part)
            known.setdefault(names["kind"].lower(), []).append(f"{version} {names['kind']}")
    for full in KINDS:
        version, _, kind = full.rpartition("/")
        known.setdefault(kind.lower(), []).append(f"{version} {kind}")
    return known


@cache
def _validator(version: str, kind: str) -> Validator | None:
    """What checks an object of this kind, or None where no schema is at hand."""
    name = KINDS.get(f"{version}/{kind}") or _kubernetes_name(version, kind)
    if name is None:
        return None
    root = {"$id": f"file://{_DEFINITIONS}", "$defs": _definitions(), "$ref": f"#/$defs/{name}"}
    from jsonschema import Draft202012Validator

    return Draft202012Validator(root)


def _kubernetes_name(version: str, kind: str) -> str | None:
    group, _, number = version.rpartition("/")
    wanted = {"group": group, "version": number, "kind": kind}
    kinds = ((name, made.get("x-kubernetes-group-version-kind", ())) for name, made in _definitions().items())
    return next((name for name, known_as in kinds if wanted in known_as), None)


RULES = (
    Rule(name="kind", says="Each object names an apiVersion and a kind whose schema is known.", look=_kinds),
    Rule(
        name="schema",
        says="Every field is one that the kind has, of the right type, and none that it needs is missing.",
        look=_fields,
    ),
)
