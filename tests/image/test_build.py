"""`loradock build` on a real engine with a light lock: what it makes, what it keeps, what it leaves when it fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from light_image import PACKAGES, light_checkout

from loradock.delivery.image import labels

if TYPE_CHECKING:
    from docker import DockerClient

TAG = "loradock-test:build"
CANARY = "canary-5f2c9a71"


def command(checkout: Path, scratch: Path, base: str, *more: str) -> list[str]:
    """A build's command line. Where the machine trusts more than the usual certificates, the build does as well."""
    ca = os.environ.get("SSL_CERT_FILE")
    trusted = ["--ca", ca] if ca else []
    where = ["--context", str(checkout), "--scratch", str(scratch), "--base-image", base, "--devel-image", base]
    return [sys.executable, "-m", "loradock", "build", *where, *trusted, *more]


def run(checkout: Path, scratch: Path, base: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a build to its end."""
    return subprocess.run(command(checkout, scratch, base, *more), capture_output=True, text=True, timeout=600)


def remains(engine: DockerClient, scratch: Path) -> dict[str, list[str]]:
    """What a build that ended must not leave: containers and untagged images of ours, temporary files."""
    containers = engine.containers.list(all=True, filters={"label": labels.CONTAINER})
    dangling = engine.images.list(filters={"dangling": True, "label": labels.IMAGE})
    return {
        "containers": [c.name or "" for c in containers if str(scratch) in str(c.attrs["HostConfig"]["Binds"])],
        "images": [i.id or "" for i in dangling if i.id not in OLDER and i.labels[labels.IMAGE] != "true"],
        "temporary": [path.name for path in (scratch / "tmp").iterdir()],
    }


OLDER: set[str | None] = set()  # what others left on a person's engine before these tests
NOTHING: dict[str, list[str]] = {"containers": [], "images": [], "temporary": []}


def sleeping() -> bool:
    """True while the process that `backend` was told to become runs, inside or outside of a container."""
    found = False
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found = found or path.read_bytes() == b"sleep\x00299\x00"
    return found


@contextlib.contextmanager
def backend(checkout: Path, code: str) -> Iterator[None]:
    """Let the installation of loradock itself, the last step of a build, run `code`; it is put right at the end."""
    project = checkout / "pyproject.toml"
    right = project.read_text(encoding="utf-8")
    ours = checkout / "src" / "backend.py"
    ours.write_text(f"# {time.time()}\n{code}\n", encoding="utf-8")
    setuptools = 'build-backend = "setuptools.build_meta"'
    project.write_text(right.replace(setuptools, 'build-backend = "backend"\nbackend-path = ["src"]'), encoding="utf-8")
    yield
    project.write_text(right, encoding="utf-8")
    ours.unlink()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return light_checkout(tmp_path_factory.mktemp("checkout") / "loradock")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "fss"


@pytest.fixture(scope="module")
def built(engine: DockerClient, base_image: str, checkout: Path, scratch: Path) -> Iterator[dict[str, Any]]:
    """The record of a first build, made with a pip.conf that holds a secret."""
    OLDER.update(image.id for image in engine.images.list(filters={"dangling": True}))
    conf = scratch.parent / "pip.conf"
    conf.write_text(f"# {CANARY}\n[global]\ndisable-pip-version-check = true\n", encoding="utf-8")
    done = run(checkout, scratch, base_image, "--tag", TAG, "--json", "--pip-conf", str(conf))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    yield record
    engine.images.remove(TAG, force=True)
    for replaced in engine.images.list(filters={"dangling": True, "label": f"{labels.LOCK}={record['lock_sha256']}"}):
        engine.images.remove(replaced.id, force=True)


def test_a_build_gives_an_image_that_runs_and_a_record_of_what_it_is(
    engine: DockerClient, built: dict[str, Any], base_image: str, scratch: Path
) -> None:
    image = engine.images.get(TAG)
    assert image.id == built["image"]
    assert image.labels[labels.LOCK] == built["lock_sha256"]
    assert image.labels[labels.BASE_VERIFIED] == "false"
    assert built["base"] == {"name": base_image, "is_verified": False}
    assert sum(layer["bytes"] for layer in built["layers"]) == pytest.approx(built["bytes"], rel=0.01)
    assert built["wheels"] == len(PACKAGES)
    states = {step["step"].split("]")[0]: step["state"] for step in built["steps"]}
    assert states["[venv 1/2"] in {"done", "cached"}
    log = Path(built["log"])
    assert json.loads(log.with_suffix(".json").read_text(encoding="utf-8")) == built
    assert "install_venv" in log.read_text(encoding="utf-8")
    said = engine.containers.run(TAG, ["--version"], remove=True, labels={labels.CONTAINER: "test"})
    assert b"loradock" in said
    assert remains(engine, scratch) == NOTHING


def test_a_secret_is_in_no_log_record_or_history(built: dict[str, Any], engine: DockerClient) -> None:
    log = Path(built["log"])
    history = json.dumps(engine.images.get(TAG).history())
    for text in (log.read_text(encoding="utf-8"), log.with_suffix(".json").read_text(encoding="utf-8"), history):
        assert CANARY not in text


def test_the_wheels_lie_on_the_scratch_and_none_in_the_image(
    built: dict[str, Any], engine: DockerClient, scratch: Path
) -> None:
    wheels = list((scratch / "wheels").glob("*.whl"))
    assert len(wheels) == len(PACKAGES)
    assert {path.stat().st_uid for path in wheels} == {os.geteuid()}
    found = engine.containers.run(
        TAG,
        ["-c", "find / -xdev -name '*.whl' 2>/dev/null || true"],
        entrypoint="bash",
        remove=True,
        labels={labels.CONTAINER: "test"},
    )
    assert found == b""


def test_a_change_of_code_rebuilds_only_from_there_and_a_second_build_fetches_nothing(
    built: dict[str, Any], base_image: str, checkout: Path, scratch: Path
) -> None:
    source = checkout / "src" / "loradock" / "__init__.py"
    source.write_text(source.read_text(encoding="utf-8") + f"\nCHANGED = {time.time()}\n", encoding="utf-8")
    done = run(checkout, scratch, base_image, "--tag", TAG, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    again = [step["step"] for step in record["steps"] if step["state"] == "done" and "] RUN" in step["step"]]
    assert len(again) == 1
    assert "install_loradock" in again[0]
    assert "fetching" not in done.stderr


def test_a_corrupt_wheel_is_fetched_anew(built: dict[str, Any], base_image: str, checkout: Path, scratch: Path) -> None:
    wheel = next((scratch / "wheels").glob("click-*.whl"))
    good = wheel.read_bytes()
    wheel.write_bytes(b"broken" + good[6:])
    done = run(checkout, scratch, base_image, "--tag", TAG)
    assert done.returncode == 0, done.stderr
    assert "fetching wheels" in done.stderr
    assert wheel.read_bytes() == good


def test_a_failing_step_shows_its_last_lines_and_the_next_build_works(
    built: dict[str, Any], engine: DockerClient, base_image: str, checkout: Path, scratch: Path
) -> None:
    with backend(checkout, "raise SystemExit('the cable is loose')"):
        failed = run(checkout, scratch, base_image, "--tag", TAG)
    assert failed.returncode == 71
    assert "the cable is loose" in failed.stderr
    log = failed.stderr.strip().splitlines()[-1].removeprefix("hint: the whole log: less ")
    assert "the cable is loose" in Path(log).read_text(encoding="utf-8")
    assert remains(engine, scratch) == NOTHING
    assert run(checkout, scratch, base_image, "--tag", TAG).returncode == 0


@pytest.mark.thin(3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_build_leaving_nothing_and_the_next_one_works(
    built: dict[str, Any], engine: DockerClient, base_image: str, checkout: Path, scratch: Path, number: signal.Signals
) -> None:
    with (
        backend(checkout, "import os; os.execvp('sleep', ['sleep', '299'])"),
        subprocess.Popen(
            command(checkout, scratch, base_image, "--tag", TAG), stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stderr is not None
        said = ""
        while "install_loradock" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        while not sleeping():
            time.sleep(0.1)
        held = run(checkout, scratch, base_image, "--tag", TAG)
        began = time.monotonic()
        process.send_signal(number)
        told = process.stderr.read()
        process.wait(120)
        took = time.monotonic() - began
    assert process.returncode == 76, said + told
    assert took < 60
    assert f"stopped by {number.name}" in told
    assert held.returncode == 71
    assert f"another build (process {process.pid} on" in held.stderr
    assert remains(engine, scratch) == NOTHING
    assert not sleeping()
    assert run(checkout, scratch, base_image, "--tag", TAG).returncode == 0


def fake_wheel(folder: Path, checkout: Path) -> Path:
    """A flash-attn wheel of the pinned version that installs but does not import."""
    pins = json.loads((checkout / "docker" / "versions.json").read_text(encoding="utf-8"))
    version = pins["flash-attn"]["version"]
    wheel = folder / f"flash_attn-{version}-py3-none-any.whl"
    info = f"flash_attn-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("flash_attn/__init__.py", "import the_torch_it_was_built_for\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def test_a_flash_attn_wheel_is_taken_by_its_hash_and_an_image_where_it_does_not_import_is_not_built(
    built: dict[str, Any], engine: DockerClient, base_image: str, checkout: Path, scratch: Path, tmp_path: Path
) -> None:
    wheel = fake_wheel(tmp_path, checkout)
    tag = f"{TAG}-flash"
    done = run(checkout, scratch, base_image, "--tag", tag, "--flash-attn", f"wheel:{wheel}")
    log = max((scratch / "records").glob("*.log")).read_text(encoding="utf-8")
    assert done.returncode == 71, done.stderr
    assert "failed        [venv 2/2]" in done.stderr
    assert "ModuleNotFoundError" in done.stderr
    assert "Successfully installed flash-attn-" in log
    assert engine.images.list(tag) == []
    assert remains(engine, scratch) == NOTHING


@pytest.mark.full
def test_flash_attn_is_compiled_in_the_scratch_by_a_container_that_goes_again(
    engine: DockerClient, base_image: str, tmp_path: Path
) -> None:
    """The compiler is a stand-in that copies a wheel; the real one takes hours."""
    checkout = light_checkout(tmp_path / "checkout")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    compiler = checkout / "docker" / "flash_attn"
    compiler.write_text(
        '#!/bin/sh\nset -e\necho "for $FLASH_ATTN_ARCHS with $MAX_JOBS jobs"\n'
        'mkdir "$1/flash-attn-0123"\ncp /opt/loradock/flash-attn/*.whl "$2"\n'
        'printf \'{"archs": "%s", "job_seconds": 8.5}\' "$FLASH_ATTN_ARCHS" >"$2/flash-attn.json"\n',
        encoding="utf-8",
    )
    wheel = fake_wheel(checkout / "docker", checkout)
    dockerfile = checkout / "Dockerfile"
    text = dockerfile.read_text(encoding="utf-8").replace(
        "COPY docker/flash_attn ", "COPY docker/*.whl docker/flash_attn "
    )
    dockerfile.write_text(text, encoding="utf-8")
    sizes = json.loads((checkout / "docker" / "sizes.json").read_text(encoding="utf-8"))
    sizes["stages"]["flash-attn-tree"] = {"bytes": 1000, "files": 10}
    (checkout / "docker" / "sizes.json").write_text(json.dumps(sizes), encoding="utf-8")
    (checkout / "docker" / "apt-flash-attn.txt").write_text("python3\n", encoding="utf-8")
    asked = ("--flash-attn", "build", "--flash-attn-archs", "80", "--max-jobs", "3", "--tag", f"{TAG}-flash")
    done = run(checkout, scratch, base_image, *asked)
    log = max((scratch / "records").glob("*.log")).read_text(encoding="utf-8")
    assert "for 80 with 3 jobs" in log, done.stderr
    assert (scratch / "flash-attn-0123").stat().st_uid == os.geteuid()
    assert [path.name for path in (scratch / "wheels").glob("*/*.whl")] == [wheel.name]
    assert "Successfully installed flash-attn-" in log
    assert done.returncode == 71
    assert "ModuleNotFoundError" in done.stderr
    assert remains(engine, scratch) == NOTHING
