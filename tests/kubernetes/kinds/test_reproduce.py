"""`loradock render job --reproduce`: the pod repeats a recorded run, with the sizes of its configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from loradock.cli import cli
from loradock.config.load import load
from loradock.errors import InputMissing, UsageError

IMAGE = f"registry.example/loradock@sha256:{'0' * 64}"
SITE = ("--image", IMAGE, "--gpus", "0", "--data-claim", "data", "--output-claim", "runs")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of a run, in the folder `runs` of the working directory."""
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    config = load(None, shortcuts={"--model": "base", "--data": ["rows.jsonl"]}, needs_inputs=False).config
    base = {"name": "base", "revision": None, "path": "/gone/base"}
    record = {"config": config.model_dump(mode="json"), "fingerprint": {"lora.rank": "16"}, "base": base}
    (folder / "run.json").write_text(json.dumps(record), "utf-8")
    monkeypatch.chdir(tmp_path)
    return folder


def rendered(*words: str) -> tuple[dict[str, Any], str]:
    done = CliRunner().invoke(cli, ["render", "job", *SITE, *words])
    if done.exception:
        raise done.exception
    (job, *_) = yaml.safe_load_all(done.stdout)
    return job, done.stderr


def test_the_pod_repeats_the_run_and_starts_its_processes_itself(run: Path) -> None:
    job, told = rendered("--reproduce", "runs/mine", "--whole", "--model", "base", "--gpus", "2")
    container = job["spec"]["template"]["spec"]["containers"][0]
    output = f"/output/{job['metadata']['name']}"
    assert container["args"] == ["reproduce", "runs/mine", "--model", "base", "--output", output, "--whole"]
    assert container["workingDir"] == "/data"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert job["metadata"]["name"].startswith("reproduce-")
    assert "the pod has to find rows.jsonl where the run did" in told
    assert 85 in job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]


@pytest.mark.parametrize("other", [("--demo",), ("--set", "lora.rank=8"), ("--net-check",), ("--nodes", "2")])
def test_what_would_have_no_effect_is_refused(other: tuple[str, ...], run: Path) -> None:
    with pytest.raises(UsageError, match="cannot be used together"):
        rendered("--reproduce", str(run), *other)


def test_as_many_gpus_as_the_run_had_processes(run: Path) -> None:
    record = json.loads((run / "run.json").read_text("utf-8"))
    plan = {"decisions": [{"name": "device", "value": "cuda", "why": "there"}]}
    (run / "run.json").write_text(json.dumps(record | {"facts": {"world_size": 4}, "plan": plan}), "utf-8")
    with pytest.raises(UsageError, match="trained by 4 processes with a GPU each, and the pod has 2") as refused:
        rendered("--reproduce", str(run), "--gpus", "2")
    assert refused.value.hint == "--gpus 4"
    rendered("--reproduce", str(run), "--gpus", "4")


def test_a_record_has_to_be_there_and_whole_is_of_a_repeat(run: Path) -> None:
    with pytest.raises(InputMissing):
        rendered("--reproduce", str(run.parent))
    with pytest.raises(UsageError, match="--whole is for --reproduce"):
        rendered("--demo", "--whole")
