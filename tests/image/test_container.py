"""The full image in real containers: any uid, nothing writable but a tmpfs, no capability, no network."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from image.containers import Ended, start
from image.leaks import scan
from proven import unchecked

from loradock.delivery.image import labels
from loradock.facts import IMAGE_DIGEST

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container
    from faults.conftest import Trial

UIDS = ("65532", "123456:0", "1000730000:0")
SHORT = ("train", "--demo", "--output", "/out", "--set", "train.max_steps=4")


# The first of them builds the image.
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("user", [UIDS[0], *(pytest.param(user, marks=pytest.mark.full) for user in UIDS[1:])])
def test_any_uid_trains_and_saves_with_nothing_writable_but_a_tmpfs(
    engine: DockerClient, image: str, started: list[Container], tmp_path: Path, user: str, trial: Trial
) -> None:
    tmp_path.chmod(0o777)
    mounts = {str(tmp_path): {"bind": "/out", "mode": "rw"}}
    named = {IMAGE_DIGEST: "sha256:" + "1" * 64}
    ended = Ended(start(engine, image, started, *SHORT, user=user, volumes=mounts, environment=named))
    trial("P15", ended.code == 0, user=user, code=ended.code, said=ended.text[-500:] if ended.code else "")
    (adapter,) = tmp_path.glob("*/adapter/adapter_model.safetensors")
    assert adapter.stat().st_uid == int(user.partition(":")[0])
    closed = [path for path in tmp_path.rglob("*") if stat.S_IMODE(path.stat().st_mode) & 0o060 != 0o060]
    assert closed == []
    record = json.loads(next(tmp_path.glob("*/run.json")).read_text(encoding="utf-8"))
    (lock,) = engine.images.get(image).labels[labels.LOCK].split()
    assert lock in json.dumps(record)
    assert record["facts"]["image_digest"] == named[IMAGE_DIGEST]
    assert record["env_check"]["level"] == "compute"
    assert [each for each in record["env_check"]["findings"] if each["severity"] != "ok"] == []


@pytest.mark.full
def test_a_run_of_the_container_is_repeated_outside_and_the_other_way_round(
    engine: DockerClient, image: str, started: list[Container], tmp_path: Path
) -> None:
    """Another Python where the base has one; another user, package folder, home and place of the run."""
    tmp_path.chmod(0o777)
    skipped = unchecked("what is proven is that two trainings are equal")
    options: Any = {"user": UIDS[0], "volumes": {str(tmp_path): {"bind": "/out", "mode": "rw"}}}
    inside_it = Ended(start(engine, image, started, *SHORT, skipped, **options))
    assert inside_it.code == 0, inside_it.text
    (made_inside,) = tmp_path.iterdir()
    made_outside = tmp_path / "outside"
    command = [sys.executable, "-m", "loradock"]
    outside = [*command, *SHORT[:2], *SHORT[-2:], skipped, "--output", str(made_outside)]
    subprocess.run(outside, check=True, capture_output=True)
    (made_outside,) = made_outside.iterdir()
    again = subprocess.run(
        [*command, "reproduce", str(made_inside), "--whole", skipped], capture_output=True, text=True, check=False
    )
    where = f"/out/{made_outside.relative_to(tmp_path)}"
    back = Ended(start(engine, image, started, "reproduce", where, "--whole", skipped, "--output", "/out/b", **options))
    for code, text in ((again.returncode, again.stdout + again.stderr), (back.code, back.text)):
        assert code == 0, text
        assert "identical to step 4, with the same adapter" in text
        assert re.findall(r"^differs: (.*) \(may", text, re.MULTILINE) == []


@pytest.mark.thin(3)
def test_env_check_finds_nothing_wrong_in_the_image(
    engine: DockerClient, image: str, started: list[Container], tmp_path: Path
) -> None:
    """As one uid: the training runs above look as each of them."""
    tmp_path.chmod(0o777)
    mounts = {str(tmp_path): {"bind": "/workspace", "mode": "rw"}}
    ended = Ended(start(engine, image, started, "env-check", user=UIDS[-1], volumes=mounts))
    assert ended.code == 0, ended.text
    assert re.search(r" 0 errors, 0 warnings, [\d.]+ s: this machine can train", ended.text), ended.text
    assert re.search(r"ok +lock .* files match the manifest", ended.text), ended.text


def test_what_is_compiled_in_the_triton_cache_can_be_loaded(
    engine: DockerClient, image: str, started: list[Container]
) -> None:
    script = (
        'cd "$TRITON_CACHE_DIR" 2>/dev/null || { mkdir -p "$TRITON_CACHE_DIR"; cd "$TRITON_CACHE_DIR"; }; '
        "echo '#include <Python.h>' >a.c; echo 'int answer(void) { return 42; }' >>a.c; "
        "gcc -shared -fPIC -I$(python -c 'import sysconfig; print(sysconfig.get_path(\"include\"))') a.c -o a.so; "
        'python -c "import ctypes; print(ctypes.CDLL(\\"./a.so\\").answer())"; stat -c %a ..'
    )
    ended = Ended(start(engine, image, started, "bash", "-c", script, user="1000730000:0"))
    assert ended.text.split() == ["42", "700"]


def test_a_noexec_tmpfs_alone_is_refused_with_the_remedy(
    engine: DockerClient, image: str, started: list[Container]
) -> None:
    plain = {"/tmp": ""}  # Docker's own default: rw,noexec,nosuid,nodev
    ended = Ended(start(engine, image, started, *SHORT, user="123456:0", tmpfs=plain))
    assert ended.code == 71
    assert "--tmpfs /tmp:rw,exec,nosuid,nodev" in ended.text


def test_no_arguments_print_help_and_a_wrong_command_is_an_error(
    engine: DockerClient, image: str, started: list[Container]
) -> None:
    helped = Ended(start(engine, image, started))
    assert helped.code == 0
    assert "train" in helped.text
    assert Ended(start(engine, image, started, "trian")).code == 2


def test_the_image_carries_its_labels_and_drops_root(engine: DockerClient, image: str) -> None:
    config = engine.images.get(image).attrs["Config"]
    assert config["User"] == "65532:0"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Labels"][labels.IMAGE] == "true"
    assert config["Labels"][labels.BASE_VERIFIED] == "false"
    assert config["Labels"][labels.REVISION] not in {"", "unknown"}
    assert len(config["Labels"][labels.LOCK].removeprefix("sha256:")) == 64


@pytest.mark.parametrize(
    ("made", "code"), [("true", 0), ("touch -d '50 minutes ago' $H", 0), ("touch -d '70 minutes ago' $H", 1)]
)
def test_the_healthcheck_follows_the_heartbeat(
    engine: DockerClient, image: str, started: list[Container], made: str, code: int
) -> None:
    script = f"H=$LORADOCK_HEARTBEAT; {made}; echo ready; exec sleep 60"
    container = start(engine, image, started, "bash", "-c", script, user="123456:0")
    while b"ready" not in container.logs():
        time.sleep(0.1)
    result = container.exec_run("/opt/loradock/bin/healthcheck")
    assert result.exit_code == code, result.output
    container.kill()


@pytest.mark.thin(5)
@pytest.mark.parametrize(
    ("harm", "found"),
    [
        ("true", None),
        ("printf x >>$S/click/core.py", "click/core.py"),
        ("cd $S; mkdir evil-1.dist-info; printf 'Name: evil\\nVersion: 1\\n' | tee evil-1.dist-info/METADATA", "evil"),
        ("sed -i 's/^Version: .*/Version: 0.0.1/' $S/click-*.dist-info/METADATA", "click"),
        ("echo 'import os' >$S/evil.pth", "evil.pth"),
    ],
    ids=["untouched", "tampered", "extra", "wrong-version", "unowned"],
)  # fmt: skip
def test_lock_verify_finds_what_was_changed_in_the_image(
    engine: DockerClient, image: str, started: list[Container], harm: str, found: str | None
) -> None:
    script = f"S=$(python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'); {harm}; loradock lock verify"
    options = {"user": "0", "read_only": False, "cap_drop": []}
    ended = Ended(start(engine, image, started, "bash", "-c", script, **options))
    assert ended.code == (71 if found else 0), ended.text
    assert (found or "") in ended.text


@pytest.mark.full
def test_a_secret_of_the_build_is_nowhere_in_the_image(image: str, build_log: Path, canary: str) -> None:
    """The same scan finds a planted leak: see test_leaks.py."""
    assert scan(image, [canary], build_log.read_text(encoding="utf-8")) == []


def test_docker_run_is_one_command_for_a_person(image: str, engine: DockerClient) -> None:
    client = subprocess.run(
        ["docker", "run", "--rm", image, "config", "presets"], capture_output=True, text=True, timeout=120
    )
    assert client.returncode == 0, client.stderr
    assert "commonsense" in client.stdout
