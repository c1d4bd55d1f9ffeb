"""docs/examples/kubernetes: each file is what the command in its first line prints; `--write-examples` writes them.

The model is a config.json and a tokenizer, as in the tests of `loradock plan`; no weight is read.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from kubernetes.kinds.conftest import IMAGE

from loradock.cli import cli
from loradock.delivery.kubernetes.check import problems
from loradock.delivery.kubernetes.policy import POLICY

pytestmark = pytest.mark.thin(2)

COMMANDS = {
    "pod-demo.yaml": "pod --demo",
    "pod-object-store.yaml": "pod run.yaml --gpu h200 --output-claim runs"
    " --secret-env AWS_SECRET_ACCESS_KEY=store:secret --secret-env AWS_ACCESS_KEY_ID=store:id"
    " --fetch-image r.example/rclone@sha256:" + "ab" * 32 + " --fetch-arg copy --fetch-arg store:bucket/first"
    " --fetch-arg /data --fetch-size 40Gi",
    "job.yaml": "job run.yaml --gpu h200 --data-claim data --output-claim runs --explain",
    "job-two-machines.yaml": "job run.yaml --gpu h200 --gpus 8 --nodes 2 --data-claim data --output-claim runs",
    "job-net-check.yaml": "job run.yaml --gpu h200 --gpus 8 --nodes 2 --data-claim data --output-claim runs"
    " --network-policy --net-check",
    "job-openshift.yaml": "job run.yaml --gpu a10 --data-claim data --output-claim runs --openshift",
    "job-air-gapped.yaml": "job run.yaml --gpu a10 --data-claim data --output-claim runs --cache-claim cache"
    " --env HF_HUB_OFFLINE=1 --pull-secret registry",
    "jobset-queued.yaml": "jobset run.yaml --gpu h200 --gpus 8 --nodes 2 --data-claim data --output-claim runs"
    " --queue team-a --priority-class training --topology topology.kubernetes.io/zone --device rdma/hca=1",
    "trainjob.yaml": "trainjob run.yaml --gpu h200 --gpus 8 --nodes 2 --data-claim data --output-claim runs"
    " --queue team-a --node-selector nvidia.com/gpu.product=NVIDIA-H200",
}  # fmt: skip
LOCK = re.compile(r"(lock-sha256: )\S+")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_is_what_the_command_prints(folder: Path, examples: Path, is_writing: bool, name: str) -> None:
    command = f"{COMMANDS[name]} --image {IMAGE}"
    done = CliRunner().invoke(cli, ["render", *shlex.split(command)])
    assert done.exit_code == 0, done.exception
    shown = "# loradock render " + " \\\n#   ".join(re.split(r" (?=--)", command)) + "\n"
    text = shown + done.stdout
    if is_writing:
        (examples / name).write_text(text, encoding="utf-8")
    kept = (examples / name).read_text(encoding="utf-8")
    assert LOCK.sub(r"\1x", text) == LOCK.sub(r"\1x", kept), "pytest tests/kubernetes/kinds --write-examples"


def test_the_folder_holds_nothing_else(examples: Path) -> None:
    assert {each.name for each in examples.iterdir()} == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_our_own_check_finds_nothing_in_an_example(examples: Path, name: str) -> None:
    text = (examples / name).read_text(encoding="utf-8")
    assert [str(each) for each in problems({name: text})] == []


def test_the_documentation_names_every_example(examples: Path) -> None:
    page = (examples.parents[1] / "kubernetes.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"examples/kubernetes/{name}" not in page] == []


def test_the_configuration_in_an_example_is_the_one_that_was_given(examples: Path) -> None:
    config = next(iter(yaml.safe_load_all((examples / "job.yaml").read_text(encoding="utf-8"))))
    content = yaml.safe_load(config["data"]["config.yaml"])
    assert content["model"] == {"name": "Mistral-7B-v0.3"}
    assert content["output"] == "/output/support-answers"


def test_the_documentation_has_the_policy_row_by_row(examples: Path) -> None:
    page = (examples.parents[1] / "kubernetes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (.+) \|$", page, flags=re.MULTILINE)
    assert rows == [(str(each.code), each.action, each.why) for each in POLICY]
