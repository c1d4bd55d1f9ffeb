"""P16 for manifests: a text that is given is refused, or stays the text that it was; it never becomes a key."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from faults.test_rendered_yaml import INJECTIONS, LONGEST_NAME, fuzzed
from kubernetes.kinds.conftest import IMAGE, workload
from pydantic import ValidationError

from loradock.config.schema import RunConfig
from loradock.config.strict_yaml import parse_document
from loradock.delivery.kubernetes import kinds
from loradock.delivery.kubernetes.asked import secret_variable, toleration
from loradock.delivery.kubernetes.explain import explain
from loradock.delivery.kubernetes.refusals import problems
from loradock.delivery.kubernetes.workload import Account, Fetch, Placement, Volume, Workload
from loradock.delivery.kubernetes.write import yaml_text


def put(**parts: Any) -> Workload:
    return dataclasses.replace(BASE, **parts)


def config(text: str) -> str:
    """A configuration with the text in it, as the command writes it."""
    from loradock.commands.render_workload import config_text

    values = {
        "name": text[:LONGEST_NAME],
        "output": text or None,
        "model": {"name": text},
        "logging": {"project": text},
    }
    return config_text(RunConfig.model_validate(values), name="first")


BASE = workload(placement=Placement(queue="q"), fetch=Fetch(image=IMAGE, arguments=("copy",)))
TEXTS: dict[str, Callable[[str], Workload]] = {
    "name": lambda text: put(name=text),
    "image": lambda text: put(image=text),
    "image after a good one": lambda text: put(image=IMAGE + text),
    "argument": lambda text: put(command=("train", text)),
    "configuration": lambda text: put(config_text=config(text)),
    "namespace": lambda text: put(namespace=text),
    "run id": lambda text: put(run_id=text),
    "claim": lambda text: put(volumes=(Volume(name="data", path="/data", claim=text),)),
    "host path": lambda text: put(volumes=(Volume(name="data", path="/data", host_path=f"/srv{text}"),)),
    "variable": lambda text: put(environment=((text, "x"),)),
    "value": lambda text: put(environment=(("X", text),)),
    "secret": lambda text: put(secrets=(dataclasses.replace(secret_variable("A=b:c"), secret=text),)),
    "secret's key": lambda text: put(secrets=(dataclasses.replace(secret_variable("A=b:c"), key=text),)),
    "pull secret": lambda text: put(pull_secret=text),
    "queue": lambda text: put(placement=Placement(queue=text)),
    "priority class": lambda text: put(placement=Placement(priority_class=text)),
    "node label": lambda text: put(placement=Placement(node_selector=((text, "x"),))),
    "node label's value": lambda text: put(placement=Placement(node_selector=(("x", text),))),
    "toleration": lambda text: put(placement=Placement(tolerations=(toleration(text),))),
    "topology": lambda text: put(placement=Placement(topology_key=text)),
    "scheduler": lambda text: put(placement=Placement(scheduler=text)),
    "runtime class": lambda text: put(placement=Placement(runtime_class=text)),
    "service account": lambda text: put(account=Account(service_account=text)),
    "label": lambda text: put(labels=((text, "x"),)),
    "label's value": lambda text: put(labels=(("x", text),)),
    "annotation": lambda text: put(annotations=((text, "x"),)),
    "annotation's value": lambda text: put(annotations=(("x", text),)),
    "address": lambda text: put(egress=(text,)),
    "device": lambda text: put(devices=((text, 1),)),
    "fetch image": lambda text: put(fetch=Fetch(image=text)),
    "fetch argument": lambda text: put(fetch=Fetch(image=IMAGE, arguments=(text,))),
}
AS_KEYS = ("node label", "label", "annotation", "device", "toleration")
"""Where a good text is a key by intent, or may have several parts."""


def is_same_configuration(read: list[Any], text: str) -> bool:
    """By the reader that a run uses; the output is put on its volume."""
    content = parse_document(read[0]["data"]["config.yaml"], file="config.yaml")
    found = RunConfig.model_validate(content.values)
    return not content.problems and (found.name, found.model.name, found.logging.project) == (
        text[:LONGEST_NAME],
        text,
        text,
    )


def skeleton(value: Any) -> Any:
    """The structure without the texts."""
    if isinstance(value, dict):
        return {key: skeleton(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [skeleton(each) for each in value]
    return type(value).__name__


def difference(field: str, text: str, *, kind: kinds.Kind, is_explained: bool = False) -> str | None:
    """What a text changed that is none of its business, or None; also None where it was refused."""
    try:
        made = TEXTS[field](text)
    except ValidationError:
        return None
    if problems(made):
        return None
    objects = kind.objects(made)
    read = list(yaml.safe_load_all(yaml_text(objects, explain=explain(made) if is_explained else None)))
    if read != objects:
        return f"{kind.name}: read back as something else"
    if field == "configuration" and not is_same_configuration(read, text):
        return f"{kind.name}: the configuration is another"
    if field not in AS_KEYS and skeleton(read) != skeleton(kind.objects(TEXTS[field]("x"))):
        return f"{kind.name}: the structure is another"
    return None


def run(count: int, *, seed: int) -> None:
    draw = random.Random(seed)
    bad = []
    for number in range(count):
        field, text, kind = list(TEXTS)[number % len(TEXTS)], fuzzed(draw), kinds.KINDS[number % 4]
        if wrong := difference(field, text, kind=kind, is_explained=number % 10 == 0):
            bad.append((field, text, wrong))
    assert bad == []


@pytest.mark.thin(4)
@pytest.mark.parametrize("field", TEXTS)
def test_a_known_injection_is_refused_or_stays_a_text(field: str) -> None:
    job = kinds.named("job")
    wrong = [(text, said) for text in INJECTIONS if (said := difference(field, text, kind=job))]
    assert wrong == []


@pytest.mark.thin(4)
def test_500_fuzzed_texts_change_no_structure() -> None:
    run(500, seed=1)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_10_000_fuzzed_texts_change_no_structure() -> None:
    run(10_000, seed=2)


def test_the_control_a_pasted_text_is_found() -> None:
    pasted = yaml_text(kinds.named("pod").objects(BASE)).replace("r.example", "x\n      privileged: true\n      y: z")
    assert skeleton(list(yaml.safe_load_all(pasted))) != skeleton(kinds.named("pod").objects(BASE))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("name", "First_Run"), ("name", "a" * 41), ("name", "1st"), ("image", "x y"), ("image", "X\nprivileged: true"),
        ("image", "r.example/x@sha256:123"), ("namespace", "a.b"), ("run id", "a b"), ("claim", "Data"),
        ("host path", "/../etc"), ("variable", "1A"), ("secret's key", "a b"), ("queue", "a/b"), ("device", "a b"),
        ("node label", "a b"), ("node label's value", "a b"), ("toleration", "a=b:Never"), ("argument", "a\0b"),
        ("value", "\ud800"), ("label", "app.kubernetes.io/name"), ("annotation", "loradock/run-id"),
        ("address", "10.0.0.1"), ("address", "10.0.0.1/8"), ("address", "all"), ("scheduler", "A"),
    ],
)  # fmt: skip
def test_what_kubernetes_refuses_is_told_before_with_what_it_takes(field: str, text: str) -> None:
    found = problems(TEXTS[field](text))
    assert found
    assert all(each.hint for each in found)
