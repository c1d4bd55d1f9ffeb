"""What several rules say of one file: every class of mistakes at once, and the configuration line by line."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import yaml
from kubernetes.goods import CONFIG_MAP, GOOD, JOBSET, POD, dumped

from loradock.delivery.kubernetes.check import problems
from loradock.delivery.kubernetes.check.run_config import HEARTBEAT_LIMIT, HEARTBEAT_LIMIT_SECONDS


def told(text: str) -> list[tuple[str, int | None]]:
    return [(found.rule, found.line) for found in problems({"job.yaml": text})]


def test_every_class_of_mistakes_in_a_file_is_told_at_once() -> None:
    text = "kind: [Job\n---\n" + GOOD
    for old, new in (
        ("name: base", "nam: base"),
        ("backoffLimit: 3", "backofLimit: 3"),
        ("sizeLimit: 8Gi", "sizeLimit: 8Gb"),
        ("value: demo-0.demo-peers", "value: demo-0.demo-peer"),
        ("readOnlyRootFilesystem: true", "privileged: true"),
        ("name: demo-config\n            default", "name: other\n            default"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    assert {rule for rule, _ in told(text)} == {
        "yaml",
        "schema",
        "rendezvous-host",
        "config-map",
        "pss-privileged",
    }
    there = text.replace("name: other\n", "name: demo-config\n")
    assert {"configuration", "pss-privileged"} < {rule for rule, _ in told(there)}


def with_config(*lines: str) -> str:
    text = "".join(f"    {line}\n" for line in lines)
    return POD.replace(CONFIG_MAP, CONFIG_MAP[: CONFIG_MAP.index("  config.yaml")] + "  config.yaml: |\n" + text)


def line_of(text: str, part: str) -> int:
    return text.count("\n", 0, text.index(part)) + 1


def test_every_problem_of_a_configuration_is_told_at_its_line_of_the_manifest() -> None:
    text = with_config(
        "model: {name: base}",
        "",
        "data:",
        "  sources: [/out/rows.jsonl]",
        "  max_length: many",
        "train: {learning_rate: -1}",
        "lora: {rnk: 8}",
    )
    at = [line_of(text, part) for part in ("max_length", "learning_rate", "rnk")]
    assert told(text) == [("configuration", line) for line in at]


def test_what_has_no_effect_is_a_warning_at_its_line() -> None:
    lines = ("model: {name: base}", "data: {sources: [/out/rows.jsonl]}", "device: cpu", "deterministic: true")
    text = with_config(*lines)
    (found,) = problems({"job.yaml": text})
    assert (found.rule, found.level) == ("configuration", "warning")
    assert found.line == line_of(text, "deterministic")


def test_a_configuration_that_stands_in_quotes_is_told_at_its_key() -> None:
    text = with_config("x").replace("|\n    x\n", '"model: {nam: base}\\ndata: {sources: [/out/rows.jsonl]}"\n')
    assert told(text) == [("configuration", line_of(text, "config.yaml: "))]


def test_a_configuration_that_is_no_yaml_is_told_where_it_breaks() -> None:
    text = with_config("model: {name: base}", "data: [")
    assert {rule for rule, _ in told(text)} == {"configuration"}


def test_the_healthcheck_of_the_image_has_the_limit_that_the_rule_counts_on() -> None:
    script = (Path(__file__).parents[2] / "docker" / "healthcheck").read_text(encoding="utf-8")
    assert f"${{{HEARTBEAT_LIMIT}:-{HEARTBEAT_LIMIT_SECONDS}}}" in script


def test_a_container_without_resources_lacks_those_of_a_container() -> None:
    start = POD.index("    resources:", POD.index("- name: train"))
    text = POD[:start] + POD[POD.index("    securityContext:", start) :]
    found = [str(each) for each in problems({"job.yaml": text})]
    assert ["containers[0].resources.limits.memory" in found[0], len(found)] == [True, 2], found


def test_a_group_of_one_and_a_group_of_several_may_be_one_run() -> None:
    made = next(yaml.safe_load_all(JOBSET))
    (worker,) = made["spec"]["replicatedJobs"]
    leader = deepcopy(worker)
    leader["name"] = "leader"
    made["spec"]["replicatedJobs"] = [leader, worker]
    worker["template"]["spec"] |= {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
    for group, rank in ((leader, "0"), (worker, "$(PET_NODE_RANK)")):
        container = group["template"]["spec"]["template"]["spec"]["containers"][0]
        meeting = ["--nnodes", "3", "--node-rank", rank, "--rdzv", "demo-leader-0-0.demo:29400"]
        container["args"] = ["launch", *meeting, *container["args"]]
    assert told(dumped(made)) == []
    worker["template"]["spec"]["template"]["spec"]["containers"][0]["args"][4] = "1"
    assert [rule for rule, _ in told(dumped(made))] == ["node-rank"]


SERVICE = """\
---
apiVersion: v1
kind: Service
metadata: {name: head}
spec:
  selector: {app.kubernetes.io/instance: demo}
  ports: [{port: 80}]
"""


def test_a_port_that_a_service_with_an_address_does_not_forward_is_an_error() -> None:
    text = POD.replace("- train\n", "- launch\n    - --rdzv\n    - head:29400\n    - train\n") + SERVICE
    (found,) = problems({"job.yaml": text})
    assert (found.rule, found.level, found.line) == ("rendezvous-port", "error", line_of(text, "head:29400"))
    assert told(text.replace("port: 80", "port: 29400")) == []
