"""Facts from a host: cgroup limits of both versions, torchrun's variables, containers, packages and the lock."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from facts.recorded import gpus

from loradock.errors import EnvironmentUnfit
from loradock.facts import Gpu
from loradock.machine import Host, probe

CPU_V2, MEMORY_V2 = "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max"
QUOTA_V1, PERIOD_V1 = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"
OWN = "/proc/self/cgroup"
MEMORY_V1 = "/sys/fs/cgroup/memory/memory.limit_in_bytes"


class Recorded(Host):
    """A machine of 8 CPUs and 32 GiB with these files, variables, packages and GPUs."""

    def __init__(
        self,
        files: Mapping[str, str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        packages: Mapping[str, str] | None = None,
        gpus: tuple[Gpu, ...] = (),
    ) -> None:
        self.files = files or {}
        self.variables = environ or {}
        self.packages = packages or {}
        self.devices = gpus

    @property
    def environ(self) -> Mapping[str, str]:
        return self.variables

    def read_text(self, path: str) -> str | None:
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        return path in self.files

    def cpus_allowed(self) -> int:
        return 8

    def memory_bytes(self) -> int:
        return 32 << 30

    def package_version(self, name: str) -> str | None:
        return self.packages.get(name)

    def output_of(self, command: Sequence[str], *, timeout_seconds: float = 5.0) -> str | None:
        return "c0ffee" if "rev-parse" in command else None

    def gpus(self) -> tuple[tuple[Gpu, ...], str | None]:
        return self.devices, "570.86" if self.devices else None


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        ({CPU_V2: "max 100000\n"}, 8),
        ({CPU_V2: "200000 100000\n"}, 2),
        ({CPU_V2: "350000 100000\n"}, 3),
        ({CPU_V2: "50000 100000\n"}, 1),
        ({CPU_V2: "100000 50000\n"}, 2),
        ({CPU_V2: "6400000 100000\n"}, 8),
        ({QUOTA_V1: "-1\n", PERIOD_V1: "100000\n"}, 8),
        ({QUOTA_V1: "150000\n", PERIOD_V1: "50000\n"}, 3),
        ({QUOTA_V1: "400000\n"}, 4),
        ({CPU_V2: "100000 100000\n", QUOTA_V1: "400000\n"}, 1),
        ({OWN: "0::/job/step\n", "/sys/fs/cgroup/job/cpu.max": "300000 100000\n"}, 3),
    ],
)
def test_cpus_are_those_of_the_cgroup_and_never_more_than_allowed(files: dict[str, str], cpus: int) -> None:
    assert probe.gather(Recorded(files)).cpus == cpus


@pytest.mark.parametrize(
    ("files", "memory_bytes"),
    [
        ({}, 32 << 30),
        ({MEMORY_V2: "max\n"}, 32 << 30),
        ({MEMORY_V2: f"{4 << 30}\n"}, 4 << 30),
        ({MEMORY_V2: f"{900 << 30}\n"}, 32 << 30),
        ({MEMORY_V1: "9223372036854771712\n"}, 32 << 30),
        ({MEMORY_V1: f"{6 << 30}\n"}, 6 << 30),
        ({MEMORY_V2: "max\n", MEMORY_V1: f"{6 << 30}\n"}, 6 << 30),
        ({OWN: "0::/job/step\n", "/sys/fs/cgroup/job/step/memory.max": f"{5 << 30}\n"}, 5 << 30),
        ({OWN: "4:memory:/job\n", "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{7 << 30}\n"}, 7 << 30),
    ],
)
def test_memory_is_that_of_the_cgroup_and_never_more_than_the_machines(
    files: dict[str, str], memory_bytes: int
) -> None:
    assert probe.gather(Recorded(files)).memory_bytes == memory_bytes


MEMINFO = {"/proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {8 << 20} kB\n"}
CGROUP = "/sys/fs/cgroup"


def limited(limit: str, used: int, stat: str, *, at: str = CGROUP, v1: bool = False) -> dict[str, str]:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
    return {f"{at}/{names[0]}": f"{limit}\n", f"{at}/{names[1]}": f"{used}\n", f"{at}/memory.stat": stat}


@pytest.mark.parametrize(
    ("files", "free_bytes"),
    [
        ({}, 0),
        (MEMINFO, 8 << 30),
        (MEMINFO | limited("max", 5 << 30, ""), 8 << 30),
        (MEMINFO | limited(str(4 << 30), 3 << 30, "anon 7\ninactive_file 4096\nactive_file 9\n"), (1 << 30) + 4096),
        (MEMINFO | limited(str(4 << 30), 5 << 30, ""), 0),
        (
            MEMINFO
            | limited(
                str(6 << 30), 5 << 30, "inactive_file 1\ntotal_inactive_file 8192\n", at=f"{CGROUP}/memory", v1=True
            ),
            (1 << 30) + 8192,
        ),
        (
            MEMINFO
            | {OWN: "0::/job/step\n"}
            | limited("max", 1, "", at=f"{CGROUP}/job/step")
            | limited(str(3 << 30), 1 << 30, "", at=f"{CGROUP}/job"),
            2 << 30,
        ),
    ],
)
def test_free_memory_is_the_least_that_the_machine_and_each_cgroup_leave(
    files: dict[str, str], free_bytes: int
) -> None:
    assert probe.memory_free(Recorded(files)) == free_bytes


def test_torchrun_says_which_process_this_is() -> None:
    alone = probe.gather(Recorded())
    assert (alone.world_size, alone.rank, alone.local_rank) == (1, 0, 0)
    assert alone.processes_here == 1
    environ = {"WORLD_SIZE": "16", "RANK": "9", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    both = (gpus()["h200"], gpus()["t4"])
    ninth = probe.gather(Recorded(environ=environ, gpus=both))
    assert (ninth.world_size, ninth.rank, ninth.local_rank) == (16, 9, 1)
    assert ninth.processes_here == 8
    assert ninth.gpu.name == "Tesla T4"


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK"])
@pytest.mark.parametrize("text", ["", "two", "-1", "1.0"])
def test_a_variable_of_torchrun_that_is_no_whole_number_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=f"{name} is") as refused:
        probe.gather(Recorded(environ={name: text}))
    assert refused.value.exit_code == 71
    assert name in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("host", "is_container"),
    [
        (Recorded(), False),
        (Recorded({"/.dockerenv": ""}), True),
        (Recorded({"/run/.containerenv": ""}), True),
        (Recorded(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}), True),
    ],
)
def test_a_container_is_recognised(host: Host, is_container: bool) -> None:
    assert probe.gather(host).in_container is is_container


def test_gpus_and_their_driver_are_kept_with_their_architecture() -> None:
    facts = probe.gather(Recorded(gpus=(gpus()["b200"],)))
    assert (facts.has_gpu, facts.gpu.architecture, facts.driver) == (True, "sm100", "570.86")
    none = probe.gather(Recorded())
    assert (none.has_gpu, none.driver) == (False, None)


def test_only_packages_that_are_installed_are_listed() -> None:
    facts = probe.gather(Recorded(packages={"torch": "2.10.0", "flash-attn": "2.8.3", "left-pad": "1"}))
    assert facts.packages == {"torch": "2.10.0", "flash-attn": "2.8.3"}


def test_the_commit_is_the_images_own_before_the_checkouts() -> None:
    assert probe.gather(Recorded()).git_commit == "c0ffee"
    assert probe.gather(Recorded(environ={"LORADOCK_COMMIT": "abc123"})).git_commit == "abc123"


def test_the_lock_is_known_by_the_hash_of_its_bytes() -> None:
    baked = Recorded({"/opt/a.lock": "torch==2.10.0\n"}, environ={"LORADOCK_LOCK": "/opt/a.lock"})
    assert probe.gather(baked).lock_sha256 == hashlib.sha256(b"torch==2.10.0\n").hexdigest()
    assert probe.gather(Recorded()).lock_sha256 is None


def test_this_machine_is_probed_without_torch_and_within_its_limits() -> None:
    script = (
        "import sys; from loradock.machine import Host, probe; facts = probe.gather(Host());"
        "print(facts.cpus, facts.memory_bytes, "
        "'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    cpus, memory_bytes, has_torch = done.stdout.split()
    assert 1 <= int(cpus) <= Host().cpus_allowed()
    assert 0 < int(memory_bytes) <= Host().memory_bytes()
    assert has_torch == "False"
