"""Need against have: the arithmetic, and a real engine on a small disk that refuses, fails cleanly, and recovers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from light_image import light_checkout

from loradock.delivery.image.space import Need, Places, Room, Sizes, places, refuse_where_too_little, rooms
from loradock.delivery.image.wheels import locked_names
from loradock.errors import DiskFull, EnvironmentUnfit

if TYPE_CHECKING:
    from docker import DockerClient

pytestmark = pytest.mark.thin(2)

ROOT = Path(__file__).parents[2]
SIZES = ROOT / "docker" / "sizes.json"
LOCK = (ROOT / "docker" / "requirements.lock").read_text(encoding="utf-8")
MEBIBYTE = 1 << 20


def test_every_locked_package_has_a_measured_size() -> None:
    known = json.loads(SIZES.read_text(encoding="utf-8"))["packages"]
    assert {name: known.get(name, {}).get("version") for name in locked_names(LOCK)} == locked_names(LOCK)


def test_a_build_needs_the_packages_twice_over_until_they_are_installed(tmp_path: Path) -> None:
    sizes = Sizes(SIZES, lock=LOCK)
    where = Places(root=tmp_path / "engine", tmp=tmp_path / "engine" / "tmp")
    (tmp_path / "wheels").mkdir()
    first = sizes.needs(where, scratch=tmp_path, has_layers=False, has_base=True, compiles=False, has_devel=False)
    again = sizes.needs(where, scratch=tmp_path, has_layers=True, has_base=True, compiles=False, has_devel=False)
    assert 16e9 < sum(need.bytes for need in first) < 20e9
    assert 4e9 < sum(need.bytes for need in again) < 5e9
    (tmp_path / "wheels" / "torch-2.10.0-3-cp313-cp313-manylinux_2_28_x86_64.whl").touch()
    fetched = sizes.needs(where, scratch=tmp_path, has_layers=True, has_base=True, compiles=False, has_devel=False)
    torch = int(sizes.packages["torch"]["wheel_bytes"])
    assert sum(need.bytes for need in again) - sum(need.bytes for need in fetched) == torch > 5e8


def test_needs_on_one_filesystem_add_up_and_others_are_apart(tmp_path: Path) -> None:
    shared = tmp_path / "not" / "yet" / "there"
    needs = [
        Need(what="a", path=tmp_path, bytes=1000, files=10),
        Need(what="b", path=shared, bytes=2000, files=20),
        Need(what="c", path=Path("/dev/shm/x"), bytes=4000, files=40),
    ]
    found = {tuple(need.what for need in room.needs): room for room in rooms(needs)}
    assert set(found) == {("a", "b"), ("c",)}
    assert found["a", "b"].need_bytes == 3150
    assert found["c",].mount == Path("/dev/shm")
    assert found["c",].free_bytes == shutil.disk_usage("/dev/shm").free


@pytest.mark.parametrize(("free_bytes", "free_files", "said"), [(999, 99, "needs 2 KiB"), (9999, 5, "5 inodes free")])
def test_too_few_bytes_or_inodes_are_refused_with_both_figures(free_bytes: int, free_files: int, said: str) -> None:
    need = Need(what="a", path=Path("/"), bytes=1000, files=10)
    room = Room(mount=Path("/"), free_bytes=free_bytes, free_files=free_files, needs=(need,))
    with pytest.raises(DiskFull, match=said):
        refuse_where_too_little([room], hint="loradock prune --apply")
    enough = Room(mount=Path("/"), free_bytes=1050, free_files=None, needs=(need,))
    refuse_where_too_little([enough], hint="")


def test_an_engine_elsewhere_is_named_as_such() -> None:
    with pytest.raises(EnvironmentUnfit, match="not on this machine"):
        places({"DockerRootDir": "/var/lib/engine-of-another-machine"})


def unmount_below(folder: Path) -> None:
    """Undo every mount below a folder: the disk, and what an engine leaves (its network namespaces)."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    for mount in sorted((mount for mount in mounts if mount.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=True)


@pytest.fixture(scope="module")
def small_engine(engine: DockerClient, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A second engine whose root is a disk of 1.4 GiB that holds the base image; its folder, with `docker.sock`."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("needs root and dockerd")
    folder = tmp_path_factory.mktemp("small-engine")
    disk, root, socket = folder / "disk", folder / "root", folder / "docker.sock"
    root.mkdir()
    with disk.open("wb") as file:
        file.truncate(1400 * MEBIBYTE)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", disk], check=True)
    if subprocess.run(["mount", "-o", "loop", disk, root], capture_output=True).returncode:
        pytest.skip("needs root and dockerd that may mount")
    flags = ["--data-root", root, "--exec-root", folder / "exec", "-p", folder / "pid", "-H", f"unix://{socket}"]
    with (folder / "log").open("w") as log, contextlib.ExitStack() as ends:
        ends.callback(unmount_below, folder)
        process = subprocess.Popen(["dockerd", *flags, "--bridge=none", "--iptables=false"], stdout=log, stderr=log)
        ends.callback(process.wait, 60)
        ends.callback(process.terminate)
        import docker

        deadline = time.monotonic() + 300
        while not socket.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with contextlib.closing(docker.DockerClient(f"unix://{socket}", timeout=120)) as client:
            (loaded,) = client.images.load(b"".join(engine.images.get(base_image).save()))
            loaded.tag("small-base", "latest")
        yield folder


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return light_checkout(tmp_path_factory.mktemp("checkout") / "loradock")


def start(small: Path, checkout: Path, scratch: Path, *more: str) -> subprocess.Popen[str]:
    """Start a build on the small engine."""
    ca = os.environ.get("SSL_CERT_FILE")
    where = ["--context", str(checkout), "--scratch", str(scratch), "--base-image", "small-base:latest"]
    command = [sys.executable, "-m", "loradock", "build", *where, "--devel-image", "small-base:latest"]
    command += [*(["--ca", ca] if ca else []), *more]
    environment = {**os.environ, "DOCKER_HOST": f"unix://{small}/docker.sock"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def fill(file: Path, *, leave_bytes: int) -> None:
    """Take what is free on the file's disk but for `leave_bytes`."""
    free = os.statvfs(file.parent)
    with file.open("wb") as eater:
        os.posix_fallocate(eater.fileno(), 0, free.f_bavail * free.f_frsize - leave_bytes)


def test_a_disk_that_is_too_small_is_refused_before_anything_starts(
    small_engine: Path, checkout: Path, tmp_path: Path
) -> None:
    eater = small_engine / "root" / "eater"
    fill(eater, leave_bytes=200 * MEBIBYTE)
    process = start(small_engine, checkout, tmp_path / "scratch")
    _, said = process.communicate(timeout=120)
    eater.unlink()
    assert process.returncode == 73, said
    assert re.search(rf"{small_engine}/root has [12]\d\d\.\d MiB free, the build needs [345]\d\d\.\d MiB", said)
    assert "hint: loradock prune --apply; --scratch on a larger disk" in said
    assert list((tmp_path / "scratch" / "records").iterdir()) == []


@pytest.mark.full
def test_a_disk_that_fills_half_way_ends_the_build_cleanly_and_the_next_one_works(
    small_engine: Path, checkout: Path, tmp_path: Path
) -> None:
    import docker

    scratch = tmp_path / "scratch"
    process = start(small_engine, checkout, scratch)
    assert process.stderr is not None
    while "running       [system 2/2]" not in process.stderr.readline():
        assert process.poll() is None
    eater = small_engine / "root" / "eater"
    fill(eater, leave_bytes=60 * MEBIBYTE)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 73, said
    assert "no space was left in [system 2/2]" in said
    assert "MiB free on" in said
    with contextlib.closing(docker.DockerClient(f"unix://{small_engine}/docker.sock")) as client:
        assert [image.tags for image in client.images.list(all=True)] == [["small-base:latest"]]
        assert client.containers.list(all=True) == []
    assert list((scratch / "tmp").iterdir()) == []
    eater.unlink()
    again = start(small_engine, checkout, scratch)
    printed, told = again.communicate(timeout=600)
    assert again.returncode == 0, told
    assert printed.startswith("loradock:")
