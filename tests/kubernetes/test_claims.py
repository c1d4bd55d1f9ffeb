"""Volumes that a controller adds to its pods, by claims that it makes: JobSet's `volumeClaimPolicies` and the like."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest
import yaml
from kubernetes.goods import GOODS, TRAINJOB, dumped, of, template

from loradock.delivery.kubernetes.check import problems
from loradock.errors import Problem

CLAIM = {
    "metadata": {"name": "output"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}},
}
POLICIES = [{"templates": [CLAIM], "retentionPolicy": {"whenDeleted": "Retain"}}]


def claiming(text: str, kind: str) -> list[dict[str, Any]]:
    """The objects, the pods' volume `output` made from a claim."""
    objects = list(yaml.safe_load_all(text))
    made = next(each for each in objects if each["kind"] == kind)
    spec = made["spec"] if kind == "JobSet" else made["spec"]["template"]["spec"]
    spec["volumeClaimPolicies"] = deepcopy(POLICIES)
    for job in spec["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "output"]
    return objects


def stateful() -> list[dict[str, Any]]:
    pod = template(restartPolicy="Always")
    pod["spec"]["volumes"] = [volume for volume in pod["spec"]["volumes"] if volume["name"] != "output"]
    spec = {
        "selector": {"matchLabels": pod["metadata"]["labels"]},
        "serviceName": "demo",
        "template": pod,
        "volumeClaimTemplates": [deepcopy(CLAIM)],
    }
    return list(yaml.safe_load_all(dumped(of("apps/v1", "StatefulSet", spec))))


def train_job() -> list[dict[str, Any]]:
    """A TrainJob with a patch that mounts what its runtime claims."""
    objects = claiming(TRAINJOB, "ClusterTrainingRuntime")
    patch = objects[0]["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    pod = patch["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["volumeMounts"].append({"name": "output", "mountPath": "/more"})
    return objects


KINDS = {
    "JobSet": claiming(GOODS["JobSet"], "JobSet"),
    "ClusterTrainingRuntime": claiming(GOODS["ClusterTrainingRuntime"], "ClusterTrainingRuntime"),
    "TrainJob": train_job(),
    "StatefulSet": stateful(),
}


def errors(objects: list[dict[str, Any]]) -> list[Problem]:
    found = problems({"job.yaml": yaml.safe_dump_all(objects, sort_keys=False)})
    return [each for each in found if each.level == "error"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mount_of_a_claim_that_the_controller_makes_is_no_error(kind: str) -> None:
    assert [str(each) for each in errors(KINDS[kind])] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_mount_of_neither_a_volume_nor_a_claim_is_an_error_still(kind: str) -> None:
    text = yaml.safe_dump_all(KINDS[kind], sort_keys=False)
    found = problems({"job.yaml": re.sub(r"(metadata:\n +name: output)\n", r"\1s\n", text)})
    assert any("is 'output', and the pod has no such volume" in str(each) for each in found)


@pytest.mark.parametrize("kind", ["JobSet", "ClusterTrainingRuntime", "StatefulSet"])
def test_a_claim_with_the_name_of_a_volume_is_an_error(kind: str) -> None:
    objects = deepcopy(KINDS[kind])
    text = yaml.safe_dump_all(objects, sort_keys=False).replace("name: output", "name: config")
    assert "claim-name" in {each.rule for each in problems({"job.yaml": text})}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("whenDeleted: Retain", "whenDeleted: Keep", "is 'Keep', an unknown value"),
        ("retentionPolicy:", "retention:", "did you mean retentionPolicy?"),
        ("storage: 20Gi", "storage: 20GB", "20GB"),
        ("metadata:\n        name: output", "metadata:\n        namespace: other\n        name: output", "delete it"),
    ],
)
def test_what_a_policy_says_is_checked_too(old: str, new: str, says: str) -> None:
    text = yaml.safe_dump_all(KINDS["JobSet"], sort_keys=False)
    assert old in text
    (found,) = problems({"job.yaml": text.replace(old, new, 1)})
    assert says in str(found)
