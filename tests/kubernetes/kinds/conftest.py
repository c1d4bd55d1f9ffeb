"""What the tests of rendering share: --write-examples, and workloads that need no model."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import BASE

from bench.train.models import MODELS
from loradock.config.load import load
from loradock.delivery.kubernetes import asked
from loradock.delivery.kubernetes.sizes import sizes
from loradock.delivery.kubernetes.workload import SecretVariable, Workload
from loradock.facts import Facts, Gpu

CONFIG = """\
name: support-answers
model: {name: Mistral-7B-v0.3}
data: {sources: [rows.jsonl], max_length: 2048}
train: {global_batch: 32}
"""
IMAGE = "r.example/loradock@sha256:" + "0123456789abcdef" * 4
CARD = Gpu(name="NVIDIA H200", memory_bytes=141 << 30, capability=(9, 0))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-examples", action="store_true", help="write docs/examples/kubernetes/ anew")


def workload(*, gpus: int = 1, nodes: int = 1, claim: str | None = "runs", **parts: Any) -> Workload:
    """A run on `nodes` machines with `gpus` cards each; `parts` replace fields."""
    facts = Facts(
        platform="any",
        python="any",
        cpus=8,
        memory_bytes=64 << 30,
        in_container=True,
        gpus=(CARD,) * gpus,
        world_size=max(1, gpus) * nodes,
        local_world_size=max(1, gpus),
    )
    loaded = load(None, shortcuts={"--model": "base", "--data": ["rows.jsonl"]})
    made = sizes(loaded.config, facts, model=None, plan=None, nodes=nodes, has_claim=claim is not None)
    volumes = asked.volumes(made, claims={"data": "data", "output": claim}, host_paths={}, fetched_bytes=None)
    whole = Workload(
        name="first",
        image=IMAGE,
        command=("train", "/etc/loradock/config.yaml"),
        config_text="model:\n  name: base\ndata:\n  sources:\n    - path: rows.jsonl\noutput: /output/first\n",
        sizes=made,
        nodes=nodes,
        processes=max(1, gpus),
        volumes=volumes,
        working_directory=asked.DATA,
        secrets=(SecretVariable(name="HF_TOKEN", secret="hub", key="token"),),
    )
    return dataclasses.replace(whole, **parts)


def pod_of(content: dict[str, Any]) -> dict[str, Any]:
    """The spec of the pod in a Pod, Job or JobSet."""
    spec = content["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


@pytest.fixture
def is_writing(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--write-examples", default=False))


@pytest.fixture
def examples() -> Path:
    return Path(__file__).parents[3] / "docs" / "examples" / "kubernetes"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are given: run.yaml, a model without weights, no rows."""
    model = tmp_path / "Mistral-7B-v0.3"
    model.mkdir()
    values = {name: value for name, value in MODELS["mistral-7b"].items() if name != "source"}
    content = {**values, "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2}
    (model / "config.json").write_text(json.dumps(content), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BASE / name, model)
    (tmp_path / "run.yaml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
