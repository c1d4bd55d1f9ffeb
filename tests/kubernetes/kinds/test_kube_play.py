"""The rendered Pod and Job run for real under `podman kube play`: training inside, as tight as they were rendered."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes.kinds.conftest import pod_of
from kubernetes.kinds.podman import Podman, open_podman, other_root
from tiny import BASE

CONFIG = """\
name: first
model: {name: base}
data: {sources: [train.jsonl], max_length: 128}
train: {max_steps: 100000}
checkpoints: {every: 25}
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    with other_root() as within:
        opened = open_podman(tmp_path_factory.mktemp("podman"), within)
        yield opened
        opened("rmi", "--all", "--force", check=False)


@pytest.fixture
def podman(engine: Podman) -> Iterator[Podman]:
    yield engine
    engine.down()


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    """`data` with a base and rows, and an empty `output` that any uid may write, as a claim with fsGroup is."""
    data, output = tmp_path / "data", tmp_path / "output"
    shutil.copytree(BASE, data / "base")
    shutil.copy(BASE.parent / "train.jsonl", data)
    (data / "run.yaml").write_text(CONFIG, encoding="utf-8")
    output.mkdir(mode=0o777)
    output.chmod(0o777)
    tmp_path.chmod(0o755)
    return tmp_path


def rendered(kind: str, volumes: Path, image: str, *options: str) -> str:
    command = [sys.executable, "-m", "loradock", "render", kind, "run.yaml", "--gpus", "0", "--image", image]
    command += ["--host-path", f"data={volumes / 'data'}", "--host-path", f"output={volumes / 'output'}", *options]
    done = subprocess.run(command, cwd=volumes / "data", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status_of(podman: Podman, container: str) -> dict[str, str]:
    """/proc/1/status, as the container's user sees it."""
    read = podman.inside(container, "cat", "/proc/1/status")
    assert read.returncode == 0, read.stderr
    lines = read.stdout.splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def look_inside(podman: Podman, container: str, text: str) -> None:
    """Who runs there, what that may do, and what lies where."""
    config, pod = yaml.safe_load_all(text)
    status = status_of(podman, container)
    assert status["Uid"].split() == ["65532"] * 4
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    for path in ("/written", "/data/written", "/etc/loradock/written"):
        refused = podman.inside(container, "touch", path)
        assert refused.returncode != 0, path
        assert "Read-only file system" in refused.stderr, refused.stderr
    assert podman.inside(container, "cat", "/etc/loradock/config.yaml").stdout == config["data"]["config.yaml"]
    (training,) = pod_of(pod)["containers"]
    for probe in ("startupProbe", "livenessProbe"):
        assert podman.inside(container, *training[probe]["exec"]["command"]).returncode == 0, probe
    kind, size_kib = podman.inside(container, "df", "--output=fstype,size", "/dev/shm").stdout.split()[-2:]
    (shm,) = [each["emptyDir"] for each in pod_of(pod)["volumes"] if each["name"] == "shm"]
    if podman.version >= 5:  # 5.4 gives it half of the memory, whatever its limit says
        assert (shm["medium"], kind) == ("Memory", "tmpfs")
        assert int(size_kib) >> 10 >= int(shm["sizeLimit"].removesuffix("Mi"))
    limits = json.loads(podman("inspect", container).stdout)[0]["HostConfig"]
    assert f"{limits['Memory'] >> 30}Gi" == training["resources"]["limits"]["memory"]


@pytest.mark.thin(3)
@pytest.mark.timeout(1200)
def test_the_pod_trains_as_tight_as_rendered_and_sigterm_leaves_a_checkpoint_within_the_grace(
    podman: Podman, volumes: Path
) -> None:
    text = rendered("pod", volumes, podman.image)
    container = podman.play(text)
    run = volumes / "output" / "first"
    podman.wait(container, lambda: any(run.glob("checkpoints/checkpoint-*")))
    look_inside(podman, container, text)
    grace = pod_of(list(yaml.safe_load_all(text))[-1])["terminationGracePeriodSeconds"]
    began = time.monotonic()
    podman("stop", "--time", str(grace), container)
    took = time.monotonic() - began
    assert podman.ended(container) == 75, podman.said(container)
    assert took < grace
    status = json.loads((run / "status.json").read_text(encoding="utf-8"))
    assert (status["state"], status["exit_code"]) == ("interrupted", 75)
    assert (run / "checkpoints" / status["last_checkpoint"]).is_dir()


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_job_begins_again_where_its_last_pod_stopped_and_ends_with_zero(podman: Podman, volumes: Path) -> None:
    text = rendered("job", volumes, podman.image, "--max-steps", "1000")
    container = podman.play(text)
    run = volumes / "output" / "first"
    podman.wait(container, lambda: any(run.glob("checkpoints/checkpoint-*")))
    podman("stop", "--time", "120", container)
    assert podman.ended(container) == 75, podman.said(container)
    podman.down()
    container = podman.play(text)
    assert podman.ended(container) == 0, podman.said(container)
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["resumed_from"].startswith("checkpoint-")
    assert record["status"] == "finished"
    assert (run / "adapter" / "adapter_model.safetensors").stat().st_uid == 65532


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_demo_trains_in_its_pod(podman: Podman, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loradock", "render", "pod", "--demo", "--set", "train.max_steps=4"]
    done = subprocess.run([*command, "--image", podman.image], capture_output=True, text=True, timeout=120)
    container = podman.play(done.stdout)
    assert podman.ended(container) == 0, podman.said(container)
    assert "accuracy before:" in podman.said(container)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_an_exit_code_reaches_whoever_asks_and_the_policy_knows_it(podman: Podman, volumes: Path) -> None:
    (volumes / "data" / "train.jsonl").write_text("{broken\n", encoding="utf-8")
    text = rendered("job", volumes, podman.image)
    container = podman.play(text)
    code = podman.ended(container)
    assert code == 65, podman.said(container)
    rules = list(yaml.safe_load_all(text))[-1]["spec"]["podFailurePolicy"]["rules"]
    (rule,) = [each for each in rules if code in each.get("onExitCodes", {}).get("values", [])]
    assert rule["action"] == "FailJob"
