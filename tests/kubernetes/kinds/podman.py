"""`podman kube play` on a machine that runs tests: its own storage, and an image whose files are the machine's.

The image holds what is ours of a real one (entrypoint, healthcheck, user); Python, libraries and loradock are those
that run the tests, mounted read-only. LORADOCK_TEST_KUBE_IMAGE names a real image instead: an archive of docker save.
LORADOCK_TEST_PODMAN_ROOT names the root of another Debian whose podman is used, with such an image (CONTRIBUTING.md).

podman 4 differs from Kubernetes: a Job cannot be played (its template is, as a Pod) and an emptyDir in memory lies on
the disk. So does podman 5.4 (seen here): an emptyDir in memory has no limit, probes need systemd (tests run their
commands instead), and the period of grace is given to `podman stop`.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
STAND_IN = "localhost/loradock-stand-in:test"
REAL = "LORADOCK_TEST_KUBE_IMAGE"
OTHER_ROOT = "LORADOCK_TEST_PODMAN_ROOT"
ENTER_ROOT = """
cd "$1"
mount --bind . .
cd "$1"
for place in /proc /sys /dev; do mount --rbind "$place" ".$place"; done
for place in /tmp /var/tmp; do mount --bind "$place" ".$place"; done
pivot_root . mnt
umount --lazy /mnt
echo entered
exec sleep infinity
"""
# Where the host has no CAP_SYS_RESOURCE, podman's own limits are refused: they are taken out.
RUNTIME = """#!/usr/bin/env python3
import json, os, pathlib, sys
for flag, value in zip(sys.argv, sys.argv[1:]):
    file = {"--bundle": pathlib.Path(value, "config.json"), "--process": pathlib.Path(value)}.get(flag)
    if file:
        content = json.loads(file.read_text())
        content.get("process", content).pop("rlimits", None)
        file.write_text(json.dumps(content))
os.execvp("runc", ["runc", *sys.argv[1:]])
"""


@dataclass(frozen=True)
class Podman:
    """A podman with storage of its own in `folder`. `image` is what pods are to run."""

    folder: Path
    image: str
    within: tuple[str, ...] = ()

    def __call__(
        self, *arguments: str, check: bool = True, given: bytes | None = None
    ) -> subprocess.CompletedProcess[str]:
        options = ["--root", str(self.folder / "store"), "--runroot", str(self.folder / "run")]
        options += ["--cgroup-manager", "cgroupfs", "--runtime", str(self.folder / "runtime")]
        command = [*self.within, "podman", *options, *arguments]
        done = subprocess.run(command, input=given, capture_output=True, timeout=900)
        text = subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())
        assert not check or done.returncode == 0, text.stderr
        return text

    @property
    def version(self) -> int:
        return int(self("--version").stdout.split()[-1].partition(".")[0])

    def play(self, text: str) -> str:
        """Start the last object of the manifest with those before it; returns the container's name."""
        objects = list(yaml.safe_load_all(text))
        if objects[-1]["kind"] == "Job" and self.version < 5:
            template = objects[-1]["spec"]["template"]
            name = {"name": objects[-1]["metadata"]["name"]}
            objects[-1] = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | name}
            objects[-1]["spec"] = template["spec"]
        pod = objects[-1]
        if self.image == STAND_IN:
            mount_machine(pod["spec"])
        file = self.folder / "played.yaml"
        file.write_text(yaml.safe_dump_all(objects, sort_keys=False), encoding="utf-8")
        self("kube", "play", "--quiet", str(file))
        spec = pod["spec"] if pod["kind"] == "Pod" else pod["spec"]["template"]["spec"]
        name = pod["metadata"]["name"] + ("" if pod["kind"] == "Pod" else "-pod")
        return f"{name}-{spec['containers'][0]['name']}"

    def down(self) -> None:
        """Remove what was played, and its volumes."""
        self("kube", "play", "--down", str(self.folder / "played.yaml"), check=False)
        self("pod", "rm", "--all", "--force", "--time", "1", check=False)
        self("volume", "rm", "--all", "--force", check=False)

    def inside(self, container: str, *command: str) -> subprocess.CompletedProcess[str]:
        return self("exec", container, *command, check=False)

    def state(self, container: str) -> dict[str, Any]:
        return json.loads(self("inspect", container).stdout)[0]["State"]

    def ended(self, container: str, *, seconds: float = 600) -> int:
        """The exit code, when it has one."""
        deadline = time.monotonic() + seconds
        while (state := self.state(container))["Status"] != "exited":
            assert time.monotonic() < deadline, self.said(container)
            time.sleep(0.5)
        return state["ExitCode"]

    def wait(self, container: str, happens: Callable[[], object], *, seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while not happens():
            assert time.monotonic() < deadline, self.said(container)
            assert self.state(container)["Status"] in ("created", "running"), self.said(container)
            time.sleep(0.5)

    def said(self, container: str) -> str:
        done = self("logs", container, check=False)
        return done.stdout + done.stderr


@contextmanager
def other_root() -> Iterator[tuple[str, ...]]:
    """What puts a command into the root that is named, which sees this machine's temporary folders."""
    root = os.environ.get(OTHER_ROOT)
    if root is None:
        yield ()
        return
    command = ["unshare", "--mount", "sh", "-euc", ENTER_ROOT, "sh", root]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"entered\n"
            yield "nsenter", "--target", str(holder.pid), "--mount"
        finally:
            holder.kill()


def open_podman(folder: Path, within: tuple[str, ...] = ()) -> Podman:
    """Skips where there is no podman that may run a container."""
    here = within or (shutil.which("podman") and shutil.which("runc"))
    if not here or os.geteuid() != 0:
        pytest.skip("no podman here")
    folder.mkdir(parents=True, exist_ok=True)
    runtime = folder / "runtime"
    runtime.write_text(RUNTIME, encoding="utf-8")
    runtime.chmod(0o755)
    if archive := os.environ.get(REAL):
        podman = Podman(folder, "", within)
        return replace(podman, image=podman("load", "--input", archive).stdout.split()[-1])
    changes = ("ENTRYPOINT " + json.dumps([init(), "-g", "--", "/opt/loradock/bin/entrypoint"]), "USER 65532:0")
    changes += ("WORKDIR /workspace", f"ENV PATH={Path(sys.prefix) / 'bin'}:/usr/bin:/bin")
    options = [part for each in changes for part in ("--change", each)]
    podman = Podman(folder, STAND_IN)
    made = podman("import", "--quiet", *options, "-", STAND_IN, given=files_of_image(), check=False)
    if made.returncode:
        pytest.skip(f"no podman here: {made.stderr.strip()}")
    return podman


def init() -> str:
    found = shutil.which("tini") or shutil.which("catatonit")
    if found is None:
        pytest.skip("no podman here: neither tini nor catatonit")
    return found


def files_of_image() -> bytes:
    """The root of the stand-in as a tar: our files, and the places for mounts."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("etc", "proc", "sys", "dev", "usr", "workspace", "opt/loradock/bin"):
            add(tar, name, kind=tarfile.DIRTYPE, mode=0o755)
        for name in ("tmp", "var/tmp", "dev/shm", "output"):
            add(tar, name, kind=tarfile.DIRTYPE, mode=0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            add(tar, name, kind=tarfile.SYMTYPE, link=f"usr/{name}")
        add(tar, "etc/passwd", content=b"root:x:0:0::/:/bin/sh\nloradock:x:65532:0::/home/loradock:/bin/sh\n")
        add(tar, "etc/group", content=b"root:x:0:\n")
        add(tar, "etc/ld.so.cache", content=Path("/etc/ld.so.cache").read_bytes())
        for source in (ROOT / "entrypoint", ROOT / "docker" / "healthcheck"):
            add(tar, f"opt/loradock/bin/{source.name}", content=source.read_bytes(), mode=0o755)
    return stream.getvalue()


def add(
    tar: tarfile.TarFile,
    name: str,
    *,
    kind: bytes = tarfile.REGTYPE,
    content: bytes = b"",
    mode: int = 0o644,
    link: str = "",
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname, member.size = kind, mode, link, len(content)
    tar.addfile(member, io.BytesIO(content))


def mount_machine(spec: dict[str, Any]) -> None:
    """Give the pod what a real image holds: the machine's programs, this Python with its packages, our sources."""
    places = {"/usr", sys.base_prefix, str(Path(sys.prefix).resolve()), sys.prefix, str(ROOT)}
    needed = sorted(each for each in places if not any(each.startswith(f"{other}/") for other in places))
    (container,) = spec["containers"]
    container["env"] += [
        {"name": "PYTHONPATH", "value": str(ROOT / "src")},
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        {"name": "OMP_NUM_THREADS", "value": "1"},
    ]
    for number, place in enumerate(needed):
        name = f"machine-{number}"
        spec["volumes"].append({"name": name, "hostPath": {"path": place, "type": "Directory"}})
        container["volumeMounts"].append({"name": name, "mountPath": place, "readOnly": True})
