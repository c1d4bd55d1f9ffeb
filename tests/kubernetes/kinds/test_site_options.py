"""What a platform asks of a rendered run: cards and parts of them, identity, labels, a network policy, no secret."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from env_check.model.test_model_memory import LLAMA_70B
from kubernetes.kinds.conftest import IMAGE, pod_of
from kubernetes.kinds.test_command import UNKNOWN, content, render

from loradock.config.load import load
from loradock.delivery.kubernetes.refusals import is_open_secret

pytestmark = pytest.mark.thin(2)

HERE = ("--data-claim", "data", "--output-claim", "runs")


def only(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    (one,) = [each for each in found["objects"] if each["kind"] == kind]
    return one


def limits(found: dict[str, Any], kind: str = "Job") -> dict[str, str]:
    (container,) = pod_of(only(kind, found))["containers"]
    return container["resources"]["limits"]


def refused(*arguments: str | Path) -> str:
    error = render(*arguments).exception
    assert getattr(error, "exit_code", None) == 64, error
    return str(error)


def test_every_mistake_of_every_class_is_told_at_once() -> None:
    said = refused(
        "job", *UNKNOWN, "--memory", "lots", "--storage", "-1", "--env", "A", "--env", "HF_TOKEN=hf_abcdefgh",
        "--device", "rdma/hca=0.5", "--gpu", "a11", "--queue", "a b", "--label", "app.kubernetes.io/name=x",
        "--toleration", "a=b:Never", "--host-path", "models=/srv", "--secret-env", "X=y", "--allow-egress", "0.0.0.0/0",
        "--data-claim", "a", "--host-path", "data=/b", "--annotation", "x", "--node-selector", "a=1",
        "--node-selector", "a=2", "--openshift", "--uid", "1000",
    )  # fmt: skip
    for words in (
        "--memory: 'lots'", "--storage: '-1'", "--env A", "--secret-env HF_TOKEN=SECRET:KEY", "--device rdma/hca=0.5",
        "did you mean a10", "--queue", "--label", "--toleration", "'models'", "--secret-env X", "--network-policy",
        "/data comes from several places", "--annotation x", "--node-selector names a twice", "leave out --uid",
    ):  # fmt: skip
        assert words in said, words
    assert "hf_abcdefgh" not in said


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("HF_TOKEN", "abcdefgh", True), ("WANDB_API_KEY", "0a1b2c3d", True), ("DB_PASSWORD", "hunter22", True),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI", True), ("SOMETHING", "hf_abcdefghijkl", True),
        ("HTTPS_PROXY", "http://me:pass@proxy:3128", True), ("hub_token", "abcdefgh", True),
        ("TOKENIZERS_PARALLELISM", "false", False), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", False),
        ("HF_TOKEN_PATH", "/run/secrets/hub", False), ("MAX_TOKENS", "4096", False), ("KEYBOARD", "german", False),
        ("HTTPS_PROXY", "http://proxy:3128", False), ("MONKEY", "business", False),
        ("HF_TOKEN", "abc", True), ("HF_TOKEN", "", False), ("USE_AUTH_TOKEN", "true", False),
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_name_or_its_form(name: str, value: str, is_secret: bool) -> None:
    assert is_open_secret(name, value) is is_secret


def test_cards_are_asked_for_once_by_count_or_by_the_name_of_their_resource() -> None:
    assert limits(content("job", *UNKNOWN, *HERE, "--gpus", "4"))["nvidia.com/gpu"] == "4"
    named = content("job", *UNKNOWN, *HERE, "--device", "nvidia.com/gpu.shared=2")
    assert limits(named)["nvidia.com/gpu.shared"] == "2"
    assert "nvidia.com/gpu" not in limits(named)
    (container,) = pod_of(only("Job", named))["containers"]
    assert container["args"][:3] == ["launch", "--nproc", "2"]
    assert "cannot be used together" in refused("job", *UNKNOWN, "--device", "nvidia.com/gpu=4", "--gpus", "8")
    two = ("--device", "nvidia.com/gpu=1", "--device", "nvidia.com/mig-1g.10gb=1")
    assert "GPUs of one model" in refused("job", *UNKNOWN, *two)
    assert "one MIG instance" in refused("job", *UNKNOWN, "--device", "nvidia.com/mig-1g.10gb=2")


@pytest.mark.usefixtures("folder")
def test_a_part_of_a_card_is_planned_with_its_own_memory() -> None:
    asked = ("job", "run.yaml", *HERE, "--image", IMAGE, "--gpu", "a100-40", "--device")
    part = content(*asked, "nvidia.com/mig-3g.20gb=1")
    assert limits(part)["nvidia.com/mig-3g.20gb"] == "1"
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert taint in pod_of(only("Job", part))["tolerations"]
    error = render(*asked, "nvidia.com/mig-1g.5gb=1").exception
    assert getattr(error, "exit_code", None) == 80, error
    assert "A100" in str(error)
    assert "MIG 1g.5gb has 4.0 GiB" in str(error)


def test_more_processes_than_samples_are_refused_with_the_plan_and_without() -> None:
    error = render("job", *UNKNOWN, *HERE, "--gpus", "8", "--nodes", "4").exception
    assert getattr(error, "exit_code", None) == 78
    assert "32 processes" in str(error)
    assert "--set train.global_batch=32" in str(error)


def test_processors_are_those_of_the_loader_and_two_of_each_process() -> None:
    assert limits(content("job", *UNKNOWN, *HERE, "--gpus", "4"))["cpu"] == "16"
    assert limits(content("job", *UNKNOWN, *HERE, "--set", "train.workers=6"))["cpu"] == "8"
    asked = content("job", *UNKNOWN, *HERE, "--cpus", "3")
    assert limits(asked)["cpu"] == "3"
    assert asked["sizes"]["cpus"]["why"] == "asked for"


@pytest.mark.parametrize(
    ("flag", "little", "enough"),
    [("--cpus", "3", "4"), ("--memory", "9Gi", "64Gi"), ("--shm", "500Mi", "2Gi"), ("--storage", "5Gi", "8Gi")],
)
def test_less_than_the_run_is_expected_to_need_is_rendered_and_warned_about(
    flag: str, little: str, enough: str
) -> None:
    found = content("job", *UNKNOWN, *HERE, flag, little)["warnings"]
    (said,) = [each for each in found if flag in each]
    assert said.startswith(f"{flag} {little} is less than the expected need, ")
    assert not [each for each in content("job", *UNKNOWN, *HERE, flag, enough)["warnings"] if flag in each]


def test_a_path_of_this_machine_is_no_path_of_the_pod(tmp_path: Path) -> None:
    where = ("--data-claim", "data", "--output-claim", "runs", "--set", "data.validation=/tmp/held-out.jsonl")
    found = content("job", "--model", tmp_path, "--data", "/data/rows.jsonl", *where)["warnings"]
    (model,) = [each for each in found if f"{tmp_path} is not a path" in each]
    assert "but one of this machine: put it on the data volume" in model
    assert any(each.startswith("/tmp/held-out.jsonl is not a path in the pod") for each in found)
    assert not any(each.startswith("/data/rows.jsonl") for each in found)


def test_the_output_that_is_moved_is_told() -> None:
    found = content("job", *UNKNOWN, *HERE, "--output", "elsewhere/first")
    (said,) = [each for each in found["warnings"] if "elsewhere" in each]
    assert said == "the run writes to /output/first, on the output's volume, and not to elsewhere/first"
    assert yaml.safe_load(only("ConfigMap", found)["data"]["config.yaml"])["output"] == "/output/first"
    assert "`output` is moved to the output's volume" in render("job", *UNKNOWN, *HERE, "--explain").stdout


def test_whether_it_fits_is_said_to_be_unknown(llama: Path) -> None:
    found = content("job", "--model", llama, "--data", "x", *HERE, "--gpus", "2")["warnings"]
    assert any("whether the run fits and how long a step takes is unknown" in each for each in found)
    assert any("whether the run fits is unknown" in each for each in content("job", *UNKNOWN, *HERE)["warnings"])


def test_a_whole_configuration_says_the_same_without_any_default(tmp_path: Path) -> None:
    part, whole = (
        yaml.safe_load(only("ConfigMap", content("job", *UNKNOWN, *HERE, *more))["data"]["config.yaml"])
        for more in ((), ("--whole-config",))
    )
    assert "lora" not in part
    texts = [tmp_path / "part.yaml", tmp_path / "whole.yaml"]
    for file, each in zip(texts, (part, whole), strict=True):
        file.write_text(yaml.safe_dump(each), encoding="utf-8")
    short, long = (load(file) for file in texts)
    assert long.config == short.config
    assert long.warnings == ()
    assert len(whole["train"]) > 15


def test_the_memory_of_a_pod_has_room_for_what_its_cards_have_not(folder: Path) -> None:
    (folder / "Mistral-7B-v0.3" / "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    asked = ("job", "run.yaml", *HERE, "--image", IMAGE, "--gpu", "rtx-3090", "--set", "data.max_length=512", "--gpus")
    two, eight = (content(*asked, number)["sizes"]["memory_bytes"] for number in ("2", "8"))
    assert "cpu_offload" in two["why"]
    assert two["value"] > 70 << 30
    assert "cpu_offload" not in eight["why"]


def test_a_platforms_words_become_fields_of_every_object_and_pod() -> None:
    found = content(
        "jobset", *UNKNOWN, *HERE, "--gpus", "2", "--nodes", "2", "--label", "team=a", "--annotation", "cost=c 7",
        "--service-account", "runner", "--runtime-class", "nvidia", "--scheduler-name", "volcano",
        "--ttl-seconds", "600", "--uid", "1000", "--fs-group", "2000",
    )  # fmt: skip
    for each in found["objects"]:
        assert each["metadata"]["labels"]["team"] == "a"
        assert each["metadata"]["annotations"]["cost"] == "c 7"
    spec = only("JobSet", found)["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert spec["ttlSecondsAfterFinished"] == 600
    assert "ttlSecondsAfterFinished" not in job
    assert job["template"]["metadata"]["labels"]["team"] == "a"
    pod = job["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("runner", False)
    assert (pod["runtimeClassName"], pod["schedulerName"]) == ("nvidia", "volcano")
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (1000, 2000)
    assert only("Job", content("job", *UNKNOWN, *HERE, "--ttl-seconds", "0"))["spec"]["ttlSecondsAfterFinished"] == 0
    for kind in ("pod", "trainjob"):
        assert "nothing deletes" in refused(kind, *UNKNOWN, *HERE, "--ttl-seconds", "5")


def test_a_network_policy_leaves_names_the_runs_own_pods_and_what_was_asked_for() -> None:
    asked = ("job", *UNKNOWN, *HERE, "--gpus", "2", "--network-policy")
    two = only("NetworkPolicy", content(*asked, "--nodes", "2", "--allow-egress", "10.0.0.0/8"))["spec"]
    job = only("Job", content(*asked, "--nodes", "2"))["spec"]
    assert two["podSelector"]["matchLabels"].items() <= job["template"]["metadata"]["labels"].items()
    own = {"podSelector": two["podSelector"]}
    assert two["ingress"] == [{"from": [own]}]
    names, peers, elsewhere = two["egress"]
    assert {(each["protocol"], each["port"]) for each in names["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert (peers, elsewhere) == ({"to": [own]}, {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]})
    one = only("NetworkPolicy", content(*asked))["spec"]
    assert (one["ingress"], one["egress"]) == ([], [names])
    assert one["policyTypes"] == ["Ingress", "Egress"]
    open_ = ("job", *UNKNOWN, *HERE, "--gpus", "2")
    default = only("NetworkPolicy", content(*open_, "--nodes", "2"))["spec"]
    assert (default["policyTypes"], default["ingress"]) == (["Ingress"], [{"from": [own]}])
    assert "egress" not in default
    for without in ((*open_, "--nodes", "2", "--no-network-policy"), open_):
        assert "NetworkPolicy" not in content(*without)
    shift = only("NetworkPolicy", content(*asked, "--openshift"))["spec"]
    assert {each["port"] for each in shift["egress"][0]["ports"]} == {53, 5353}
    fetched = content(
        "job",
        "--model",
        "hub/base",
        "--set",
        f"model.revision={'a' * 40}",
        "--data",
        "/data/x",
        *HERE,
        "--network-policy",
    )
    assert any("--allow-egress CIDR" in each for each in fetched["warnings"])


def test_devices_that_pin_memory_are_told_to_need_memlock() -> None:
    warnings = content("job", *UNKNOWN, *HERE, "--device", "rdma/hca=1")["warnings"]
    assert any("rdma/hca" in each and "memlock" in each and "IPC_LOCK" in each for each in warnings)
    assert not any("memlock" in each for each in content("job", *UNKNOWN, *HERE, "--device", "x/y=1")["warnings"])


def test_the_network_is_looked_at_by_the_same_pods_in_a_job_of_its_own() -> None:
    asked = (*UNKNOWN, *HERE, "--name", "first", "--gpus", "2", "--nodes", "2", "--device", "rdma/hca=1")
    run, look = (content("job", *asked, *more) for more in ((), ("--net-check",)))
    job = only("Job", look)
    assert job["metadata"]["name"] == "net-check-first"
    assert job["spec"]["backoffLimit"] == 0
    assert [each["kind"] for each in look["objects"]] == ["NetworkPolicy", "Service", "Job"]
    assert limits(look) == limits(run)
    (container,) = pod_of(job)["containers"]
    assert " ".join(container["args"]) == (
        "launch --nproc 2 --nnodes 2 --node-rank $(JOB_COMPLETION_INDEX)"
        " --rdzv net-check-first-0.net-check-first:29400 net-check --timeout 600"
    )
    assert container.keys().isdisjoint({"startupProbe", "livenessProbe"})
    assert "needs several ranks" in refused("job", *UNKNOWN, *HERE, "--net-check")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_what_the_check_of_the_network_is_given_runs_between_two_processes() -> None:
    look = content("job", *UNKNOWN, *HERE, "--gpus", "2", "--net-check")
    (container,) = pod_of(only("Job", look))["containers"]
    command = [sys.executable, "-m", "loradock", *container["args"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "these ranks can train together" in done.stdout


def test_the_help_has_a_line_for_each_option_below_its_section() -> None:
    text = render("--help").stdout
    for section in ("Options:", "Sizes:", "Volumes:", "Scheduling:", "Security:", "Ending:"):
        assert f"\n{section}\n" in text
    text = text[text.index("Options:") :]
    assert "[CONFIG]" not in text
    assert text.index("Sizes:") < text.index("--gpus N") < text.index("Volumes:") < text.index("--data-claim")
    assert text.count("--net-check") == 1
