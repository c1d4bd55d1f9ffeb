"""The objects of each kind: valid by the published schemas, clean by our own check, and each field as promised."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes.kinds.conftest import pod_of, workload

import loradock.errors
from loradock.delivery.kubernetes import kinds
from loradock.delivery.kubernetes.check import problems
from loradock.delivery.kubernetes.container import environment
from loradock.delivery.kubernetes.explain import explain
from loradock.delivery.kubernetes.policy import POLICY, codes
from loradock.delivery.kubernetes.workload import Account, Fetch, Placement, Toleration
from loradock.delivery.kubernetes.write import yaml_text
from loradock.errors import UsageError
from loradock.facts import IMAGE_DIGEST

CORE = ("Pod", "Job", "ConfigMap", "Service", "NetworkPolicy")
EVERYTHING = Placement(
    queue="team-a",
    priority_class="high",
    node_selector=(("nvidia.com/gpu.product", "NVIDIA-H200"),),
    tolerations=(Toleration(key="dedicated", value="training", effect="NoSchedule"), Toleration(key="spot")),
    topology_key="topology.kubernetes.io/zone",
)


def one(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    return next(each for each in found if each["kind"] == kind)


def rendered(kind: str, **parts: Any) -> list[dict[str, Any]]:
    """The objects, as they are read back."""
    objects = kinds.named(kind).objects(workload(**parts))
    assert list(yaml.safe_load_all(yaml_text(objects))) == objects
    return objects


@pytest.mark.parametrize("kind", [each.name for each in kinds.KINDS])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"gpus": 0, "claim": None, "config_text": None, "command": ("train", "--demo")},
        {"gpus": 8, "placement": EVERYTHING, "pull_secret": "registry", "namespace": "team", "deadline_seconds": 3600},
        {
            "account": Account(is_openshift=True),
            "egress": ("10.0.0.0/8",),
            "fetch": Fetch(image="tool@sha256:" + "a" * 64, arguments=("copy", "$(HOME)")),
        },
    ],
    ids=["one card", "no card", "everything", "openshift, fetched"],
)
def test_it_is_valid_by_the_schemas_and_our_own_check_finds_nothing(kind: str, parts: dict[str, Any]) -> None:
    if kind != "pod":
        parts = {**parts, "nodes": 2}
    objects = rendered(kind, **parts)
    for each in objects:
        if each["kind"] in CORE:
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    assert [str(each) for each in problems({"rendered": yaml_text(objects)})] == []


@pytest.mark.parametrize("kind", [each.name for each in kinds.KINDS])
def test_explained_yaml_reads_as_the_same_objects_and_says_why(kind: str) -> None:
    asked = workload(gpus=8, nodes=1 if kind == "pod" else 2, placement=EVERYTHING)
    objects = kinds.named(kind).objects(asked)
    text = yaml_text(objects, explain=explain(asked))
    assert list(yaml.safe_load_all(text)) == objects
    comments = re.findall(r"^ *# .*$", text, flags=re.MULTILINE)
    assert len(comments) > 15
    assert max(map(len, comments)) <= 120
    assert "longest step" in text


def test_every_exit_code_has_its_consequence_and_zero_has_none() -> None:
    table = loradock.errors.__doc__ or ""
    listed = {int(code) for line in table.splitlines() for code in re.findall(r"^(\d+)\b", line)}
    assert {each.code for each in POLICY} == listed - {0}
    assert all(len(each.why) > 15 for each in POLICY)


def test_the_policy_fails_what_cannot_help_itself_and_ignores_what_came_further() -> None:
    job = one("Job", rendered("job"))
    failing, disrupted, ignored, counted = job["spec"]["podFailurePolicy"]["rules"]
    assert failing["onExitCodes"]["values"] == codes("FailJob") == [2, 64, 65, 66, 73, 77, 78, 79, 80, 83, 85, 86]
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert (ignored["action"], ignored["onExitCodes"]["values"]) == ("Ignore", [75])
    assert counted["onExitCodes"]["values"] == [69, 70, 71, 74, 76, 81, 82, 84]
    assert pod_of(job)["restartPolicy"] == "Never"
    assert {each["onExitCodes"]["containerName"] for each in (failing, ignored, counted)} == {
        pod_of(job)["containers"][0]["name"]
    }


def test_several_machines_get_a_headless_service_an_index_and_a_rendezvous() -> None:
    objects = rendered("job", gpus=4, nodes=2)
    service, job = one("Service", objects), one("Job", objects)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert spec["backoffLimit"] == 6
    assert pod_of(job)["subdomain"] == service["metadata"]["name"]
    (container,) = pod_of(job)["containers"]
    assert container["args"] == (
        "launch --nproc 4 --nnodes 2 --node-rank $(JOB_COMPLETION_INDEX) --rdzv first-0.first:29400"
        " train /etc/loradock/config.yaml"
    ).split(" ")
    assert "JOB_COMPLETION_INDEX" in [each["name"] for each in container["env"]]
    assert pod_of(job)["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"


def test_one_process_is_not_launched_by_anything() -> None:
    (container,) = pod_of(one("Pod", rendered("pod")))["containers"]
    assert container["args"] == ["train", "/etc/loradock/config.yaml"]


def test_a_pod_of_several_machines_is_refused() -> None:
    with pytest.raises(UsageError, match="one node"):
        rendered("pod", nodes=2)


def test_a_queue_admits_the_object_that_begins_suspended() -> None:
    for kind, name in (("job", "Job"), ("jobset", "JobSet"), ("trainjob", "TrainJob")):
        content = one(name, rendered(kind, placement=EVERYTHING, nodes=2))
        assert content["spec"]["suspend"] is True
        assert content["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
        assert "suspend" not in one(name, rendered(kind, nodes=2))["spec"]


def test_a_jobset_fails_for_good_where_its_job_did_and_starts_again_elsewhere() -> None:
    spec = one("JobSet", rendered("jobset", gpus=8, nodes=2))["spec"]
    assert spec["failurePolicy"]["maxRestarts"] == 3
    (rule,) = spec["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert spec["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0


def test_a_trainjob_patches_only_what_trainer_lets_it_patch() -> None:
    objects = rendered("trainjob", gpus=8, nodes=2, placement=EVERYTHING, deadline_seconds=60)
    runtime, job = one("TrainingRuntime", objects), one("TrainJob", objects)
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (patch,) = job["spec"]["runtimePatches"]
    (group,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = group["template"]["spec"]["template"]["spec"]
    assert pod.keys() <= {
        "serviceAccountName", "volumes", "initContainers", "containers", "imagePullSecrets", "securityContext",
        "nodeSelector", "affinity", "tolerations", "schedulingGates",
    }  # fmt: skip
    assert [each.keys() - {"name", "env", "volumeMounts", "securityContext"} for each in pod["containers"]] == [set()]
    assert "env" not in pod["containers"][0]  # refused there for the container `node`
    held = pod_of({"spec": runtime["spec"]["template"]["spec"]})
    assert held["terminationGracePeriodSeconds"] >= 120
    assert held["priorityClassName"] == "high"
    assert {each["name"] for each in held["volumes"]} == {"tmp", "shm"}
    assert {each["name"] for each in pod["volumes"]} == {"config", "data", "output"}
    assert job["spec"]["activeDeadlineSeconds"] == 60


def test_openshift_is_given_no_uid_and_any_other_cluster_the_images_own() -> None:
    assert pod_of(one("Pod", rendered("pod")))["securityContext"]["runAsUser"] == 65532
    left = pod_of(one("Pod", rendered("pod", account=Account(is_openshift=True))))["securityContext"]
    assert left.keys() == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}


def test_every_pod_starts_once_touches_no_cluster_and_has_time_to_save() -> None:
    for kind, name in (("pod", "Pod"), ("job", "Job"), ("jobset", "JobSet")):
        pod = pod_of(one(name, rendered(kind)))
        assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("Never", False)
        assert pod["terminationGracePeriodSeconds"] >= 120
        (container,) = pod["containers"]
        assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 1800
        assert container["livenessProbe"]["exec"]["command"] == ["/opt/loradock/bin/healthcheck"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_requests_are_limits_and_cards_are_whole() -> None:
    (container,) = pod_of(one("Pod", rendered("pod", gpus=8, devices=(("rdma/hca", 2),))))["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container["resources"]["limits"]["rdma/hca"] == "2"


def test_shared_memory_is_ram_and_its_size_is_part_of_the_memory() -> None:
    asked = workload(gpus=8)
    (shm,) = [each for each in pod_of(one("Pod", rendered("pod", gpus=8)))["volumes"] if each["name"] == "shm"]
    assert shm["emptyDir"]["medium"] == "Memory"
    assert asked.sizes.shm_bytes.value < asked.sizes.memory_bytes.value
    assert "/dev/shm" in asked.sizes.memory_bytes.why


def test_a_container_is_told_the_digest_of_its_image_where_the_image_is_named_by_one() -> None:
    def told(image: str) -> list[str]:
        found = [each.get("value") for each in environment(workload(image=image)) if each["name"] == IMAGE_DIGEST]
        return [str(value) for value in found]

    digest = "sha256:" + "0123456789abcdef" * 4
    assert told(f"r.example/loradock@{digest}") == [digest]
    assert told("r.example/loradock:1.2") == []


def test_a_secret_is_only_named() -> None:
    (container,) = pod_of(one("Pod", rendered("pod")))["containers"]
    (token,) = [each for each in container["env"] if each["name"] == "HF_TOKEN"]
    assert token == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}


def test_another_configuration_is_another_config_map() -> None:
    first, second = (workload(config_text=text).config_map for text in ("a: 1\n", "a: 2\n"))
    assert first != second
    config = one("ConfigMap", rendered("job", config_text="a: 1\n"))
    assert config["metadata"]["name"] == first
    assert config["immutable"] is True


def test_nothing_of_a_person_is_expanded_by_kubernetes() -> None:
    objects = rendered("pod", command=("train", "$(HOME)", "a$$b"), environment=(("GREETING", "$(PATH)"),))
    (container,) = pod_of(one("Pod", objects))["containers"]
    assert container["args"] == ["train", "$$(HOME)", "a$$$$b"]
    assert {"name": "GREETING", "value": "$$(PATH)"} in container["env"]
