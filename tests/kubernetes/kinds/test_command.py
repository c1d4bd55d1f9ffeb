"""`loradock render` as a person types it: options, warnings, errors with remedies, and --check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from kubernetes.kinds.conftest import IMAGE

from loradock.cli import cli


def render(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["render", *(str(each) for each in arguments)])


def content(*arguments: str | Path) -> dict[str, Any]:
    done = render(*arguments, "--json")
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


UNKNOWN = ("--model", "/data/base", "--data", "/data/rows.jsonl", "--image", IMAGE)


def test_the_demo_is_rendered_without_a_card_and_its_settings_reach_train() -> None:
    found = content("pod", "--demo", "--image", IMAGE, "--set", "train.max_steps=4", "--lr", "0.001")
    (pod,) = found["objects"]
    (container,) = pod["spec"]["containers"]
    assert container["args"] == [
        "train", "--demo", "--output", "/output", "--lr=0.001", "--set", "train.max_steps=4",
    ]  # fmt: skip
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert "by the plan" in found["sizes"]["memory_bytes"]["why"]


def test_a_model_that_is_not_here_gives_assumed_sizes_and_a_warning() -> None:
    found = content("job", *UNKNOWN, "--data-claim", "data", "--output-claim", "runs", "--gpu", "h200")
    assert "not available here" in " ".join(found["warnings"])
    assert "not here to be measured" in found["sizes"]["memory_bytes"]["why"]
    assert "assumed" in found["sizes"]["grace_seconds"]["why"]


def test_what_kubernetes_takes_and_nobody_means_is_warned_about() -> None:
    done = render("job", "--model", "./base", "--data", "/elsewhere/rows.jsonl", "--host-path", "output=/srv/runs")
    assert done.exit_code == 0, done.exception
    for words in ("is a tag", "RepoDigests", "hostPath", "is on no volume", "not a path in the pod"):
        assert words in done.stderr, words


def test_options_become_fields(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    done = render(
        "job", *UNKNOWN, "--name", "first", "--data-claim", "data", "--output-claim", "runs", "--cache-claim", "cache",
        "--gpus", "2", "--memory", "96Gi", "--shm", "2Gi", "--storage", "20Gi", "--grace-seconds", "300", "--cpus", "6",
        "--toleration", "spot=yes:NoSchedule", "--node-selector", "pool=h200", "--failures", "1", "--no-read-only-root",
        "--deadline-seconds", "600", "--env", "A=b=c", "--namespace", "team", "--run-id", "r1", "-o", file,
    )  # fmt: skip
    assert done.exit_code == 0, done.exception
    assert done.stdout == ""
    job = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))[-1]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {
        "cpu": "6", "memory": "96Gi", "ephemeral-storage": "21Gi", "nvidia.com/gpu": "2",
    }  # fmt: skip
    assert pod["terminationGracePeriodSeconds"] == 300
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert {"name": "A", "value": "b=c"} in container["env"]
    assert {"name": "HF_HOME", "value": "/cache/huggingface"} in container["env"]
    assert {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["nodeSelector"] == {"pool": "h200"}
    assert (job["spec"]["backoffLimit"], job["spec"]["activeDeadlineSeconds"]) == (1, 600)
    assert (job["metadata"]["namespace"], job["metadata"]["annotations"]["loradock/run-id"]) == ("team", "r1")
    assert container["args"][:3] == ["launch", "--nproc", "2"]


def test_the_longest_step_and_save_of_an_earlier_run_make_the_grace(tmp_path: Path) -> None:
    lines = [
        {"kind": "train", "step": 1, "loss": 2.0, "seconds": 30.0},
        {"kind": "train", "step": 11, "loss": 1.0, "seconds": 1500.0},
        {"kind": "checkpoint", "step": 11, "seconds": 90.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    found = content("job", *UNKNOWN, "--data-claim", "d", "--output-claim", "r", "--from-run", tmp_path)
    assert found["sizes"]["grace_seconds"]["value"] == 150 + 90 + 10
    assert "seen" in found["sizes"]["grace_seconds"]["why"]


def test_a_run_that_may_be_silent_for_ever_is_killed_by_no_probe() -> None:
    found = content("pod", *UNKNOWN, "--data-claim", "d", "--output-claim", "r", "--set", "limits.save_seconds=0")
    (container,) = found["objects"][-1]["spec"]["containers"]
    assert "livenessProbe" not in container
    assert container["startupProbe"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 64, "render pod|job|jobset|trainjob"),
        (("pod", "--demo", "--nodes", "2"), 64, "render job"),
        (("pod", "--demo", "--model", "x"), 64, "leave out --model"),
        (("pod", *UNKNOWN, "--name", "My_Run"), 64, "a letter, then small letters"),
        (("pod", *UNKNOWN, "--secret-env", "HF_TOKEN=hf_abc"), 64, "--secret-env HF_TOKEN=hub:token"),
        (("pod", *UNKNOWN, "--device", "nvidia.com/gpu=0.5"), 64, "not a whole number"),
        (("pod", *UNKNOWN, "--memory", "lots"), 64, "64Gi"),
        (("pod", *UNKNOWN, "--host-path", "models=/srv"), 64, "data, output, cache"),
        (("pod", *UNKNOWN, "--data-claim", "a", "--host-path", "data=/b"), 64, "several places"),
        (("pod", *UNKNOWN, "--env", "A"), 64, "no `=`"),
        (("pod", *UNKNOWN, "--from-run", "/nowhere"), 66, "metrics.jsonl"),
        (("pod", *UNKNOWN, "--gpu", "a11"), 64, "did you mean a10"),
        (("pod", *UNKNOWN, "-o", "/nowhere/pod.yaml"), 77, "-o FILE"),
    ],
)
def test_what_cannot_be_rendered_ends_with_what_to_type(arguments: tuple[str, ...], code: int, words: str) -> None:
    error = render(*arguments).exception
    assert getattr(error, "exit_code", None) == code, error
    assert words in str(error)


def test_every_refused_text_is_told_at_once() -> None:
    error = render("pod", *UNKNOWN, "--queue", "a b", "--namespace", "A", "--pull-secret", "_").exception
    assert all(option in str(error) for option in ("--queue", "--namespace", "--pull-secret"))


def test_a_secret_that_was_typed_by_mistake_is_not_repeated() -> None:
    error = render("pod", *UNKNOWN, "--secret-env", "HF_TOKEN=hf_secret").exception
    assert "hf_secret" not in str(error)


def test_a_model_that_does_not_fit_the_card_is_refused_before_anything_is_rendered(llama: Path) -> None:
    done = render("pod", "--model", llama, "--data", "x", "--gpu", "a10", "--set", "train.micro_batch=100000")
    assert getattr(done.exception, "exit_code", None) in (78, 80), done.exception


def test_a_base_whose_positions_are_stretched_is_planned_by_the_longer_ones(llama: Path) -> None:
    positions = json.loads((llama / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    asked = ("pod", "--model", llama, "--data", "x", "--gpu", "a10", "--set", f"data.max_length={positions + 1}")
    assert render(*asked).exit_code
    assert render(*asked, "--set", "model.rope_scaling=yarn", "--set", "model.rope_factor=2").exit_code == 0


def test_check_passes_what_is_rendered_and_names_line_and_remedy_of_what_is_not(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    assert render("pod", "--demo", "--image", IMAGE, "-o", file).exit_code == 0
    assert render("--check", file).stdout == f"ok: {file}\n"
    lines = file.read_text(encoding="utf-8").splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "allowPrivilegeEscalation" in line)
    file.write_text("\n".join(lines).replace("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true"))
    done = render("--check", file)
    assert getattr(done.exception, "exit_code", None) == 78
    assert f"{file}:{number}" in str(done.exception)
    found = json.loads(render("--check", file, "--json").stdout)
    assert [each["line"] for each in found] == [number]


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert getattr(render("--check", tmp_path / "none.yaml").exception, "exit_code", None) == 66
    (tmp_path / "latin.yaml").write_bytes(b"\xff")
    assert getattr(render("--check", tmp_path / "latin.yaml").exception, "exit_code", None) == 78
