"""Limits: shared memory, memory, tasks, CPUs, ulimit; each set for one process, and named with what a run needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from env_check.conftest import Examine, Faults, namespace
from env_check.spoilt_machine import IN_CONTAINER, WITH_A_GPU, cgroup, limited, printed, stranger

from loradock.config.schema import RunConfig
from loradock.env_check.base import Intent
from loradock.env_check.system import limits, loading, memory, shared_memory, tasks
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import Space

pytestmark = pytest.mark.thin(2)

MIB, GIB = 1 << 20, 1 << 30
SMALL_SHM = "mount -t tmpfs -o size=1m none /dev/shm"


def plan(**train: object) -> Intent:
    config = RunConfig.model_validate({"train": train}) if train else None
    return Intent(output=Path("/runs"), cache=Path("/cache"), scratch=Path("/tmp"), config=config)


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "run.yaml"
    text = "model: {name: /models/base}\ndata: {sources: [{path: /data/rows.jsonl}]}\ntrain: {workers: 4}\n"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_little_shared_memory_is_an_error_where_the_run_has_workers(
    examined: Examine, faults: Faults, config: str
) -> None:
    within = namespace(SMALL_SHM)
    found = examined("--only", "shared-memory", "--config", config, within=within, env=IN_CONTAINER)
    seen = found.one("shared-memory")
    faults.seen("/dev/shm of 1 MB, and loader workers", made="real", finding=seen, check="shared-memory")
    found = examined("--only", "shared-memory", within=within, env=IN_CONTAINER)
    assert found.exit_code == 0
    faults.seen("/dev/shm of 1 MB", made="real", finding=found.one("shared-memory"), check="shared-memory")


def test_shared_memory_that_cannot_be_written_is_named(examined: Examine, faults: Faults, config: str) -> None:
    within = namespace(f"{SMALL_SHM}; mount -o remount,ro /dev/shm")
    found = examined("--only", "shared-memory", "--config", config, within=within, env=IN_CONTAINER)
    faults.seen("/dev/shm is read-only", made="real", finding=found.one("shared-memory"), check="shared-memory")


def test_shared_memory_is_judged_by_what_the_run_puts_into_it(faults: Faults) -> None:
    docker = Space(device=1, free_bytes=64 * MIB, total_bytes=64 * MIB)
    assert shared_memory.judge(docker, WITH_A_GPU, plan()).severity == "ok"
    assert shared_memory.judge(docker, WITH_A_GPU, plan(workers=0, global_batch=4096)).severity == "ok"
    many = shared_memory.judge(docker, WITH_A_GPU, plan(workers=2, global_batch=512))
    assert (many.severity, many.remedy) == ("error", "docker run --shm-size=1g ...")
    eight = replace(WITH_A_GPU, gpus=WITH_A_GPU.gpus * 8)
    found = printed(shared_memory.CHECK, shared_memory.judge(docker, eight, plan()))
    faults.seen("64 MB of /dev/shm for eight GPUs", made="constructed", finding=found, check="shared-memory")


def test_the_loader_is_counted_as_the_plan_will_decide_it() -> None:
    default = RunConfig()
    assert default.train.global_batch == loading.GLOBAL_BATCH
    without_gpu, one_cpu = replace(WITH_A_GPU, gpus=()), replace(WITH_A_GPU, cpus=1)
    assert [loading.workers(facts, plan()) for facts in (WITH_A_GPU, without_gpu, one_cpu)] == [2, 0, 0]
    assert loading.loading(without_gpu, plan(workers=3)).workers == 3


def test_too_little_memory_is_an_error_and_little_a_warning(examined: Examine, faults: Faults) -> None:
    files = {"v2": "memory.max", "v1": "memory.limit_in_bytes"}
    for fault, limit in (("a cgroup of 1 GiB", GIB), ("a cgroup of 3 GiB", 3 * GIB)):
        with cgroup("memory", **files, limit=limit) as within:
            found = examined("--only", "memory", within=within)
        faults.seen(fault, made="real", finding=found.one("memory"), check="memory")
    assert found.exit_code == 0
    assert memory.judge(6 * GIB, processes=1, is_limited=True).severity == "ok"
    assert memory.judge(6 * GIB, processes=2, is_limited=True).severity == "warning"


def test_too_few_tasks_are_found(examined: Examine, faults: Faults) -> None:
    for fault, limit in (("a cgroup of 40 tasks", 40), ("a cgroup of 100 tasks", 100)):
        with cgroup("pids", v2="pids.max", v1="pids.max", limit=limit) as within:
            found = examined("--only", "tasks", within=within)
        faults.seen(fault, made="real", finding=found.one("tasks"), check="tasks")
    within = [*stranger(), *limited("--nproc=200:300")]
    found = examined("--only", "tasks", within=within, env={**IN_CONTAINER, "USER": "somebody"})
    faults.seen("ulimit -u 200", made="real", finding=found.one("tasks"), check="tasks")


def test_one_cpu_is_slow(examined: Examine, faults: Faults) -> None:
    found = examined("--only", "processors", within=["taskset", "--cpu-list", "0"])
    faults.seen("one CPU", made="real", finding=found.one("processors"), check="processors")


def test_limits_of_the_shell_are_found_each_with_its_ulimit(examined: Examine, faults: Faults) -> None:
    within = limited("--nofile=256:4096", "--fsize=1048576:", "--cpu=600:")
    found = examined("--only", "limits", within=within)
    for fault, words in (
        ("ulimit -n 256", "files may be open"),
        ("ulimit -f 1024", "files are limited"),
        ("ulimit -t 600", "killed after"),
    ):
        faults.seen(fault, made="real", finding=found.one("limits", containing=words), check="limits")
    assert found.exit_code == 0


def test_an_address_space_that_the_libraries_do_not_fit_into_is_an_error(examined: Examine, faults: Faults) -> None:
    found = examined("--only", "limits", within=limited("--as=4294967296:"))
    faults.seen("ulimit -v 4 GiB", made="real", finding=found.one("limits"), check="limits")
    (with_gpu,) = limits.address_space((64 * GIB, None), WITH_A_GPU, plan())
    seen = printed(limits.CHECK, with_gpu)
    faults.seen("an address space that CUDA does not fit into", made="constructed", finding=seen, check="limits")
    assert limits.address_space((64 * GIB, None), replace(WITH_A_GPU, gpus=()), plan()) == []


def test_a_hard_limit_of_open_files_is_raised_from_without() -> None:
    (found,) = limits.open_files((256, 256), WITH_A_GPU, plan())
    assert found.remedy == "docker run --ulimit nofile=65536 ..."
    assert limits.open_files((1024, 1024), WITH_A_GPU, plan()) == []
    assert limits.open_files((1024, None), WITH_A_GPU, plan(workers=8, global_batch=64))[0].remedy == "ulimit -n 65536"


class WithInfiniBand(Host):
    """A machine with an InfiniBand adapter, whose shell may lock 8 MiB."""

    def names(self, folder: str) -> tuple[str, ...]:
        return ("mlx5_0",) if folder == "/sys/class/infiniband" else super().names(folder)

    def limit(self, name: str) -> tuple[int | None, int | None]:
        return (8 * MIB, 8 * MIB) if name == "locked memory" else (None, None)


def test_locked_memory_matters_with_infiniband_and_several_gpus(faults: Faults) -> None:
    two = replace(WITH_A_GPU, gpus=WITH_A_GPU.gpus * 2)
    (found,) = limits.look(WithInfiniBand(), two, plan())
    seen = printed(limits.CHECK, found)
    faults.seen("locked memory too small for InfiniBand", made="constructed", finding=seen, check="limits")
    assert limits.look(WithInfiniBand(), WITH_A_GPU, plan())[0].severity == "ok"


def test_tasks_are_counted_for_every_process_of_the_machine() -> None:
    def judged(facts: Facts) -> int:
        return len(tasks.judge(1000, whose="the limit", remedy="ulimit -u 4096", facts=facts))

    assert [judged(replace(WITH_A_GPU, world_size=size)) for size in (1, 8)] == [0, 1]
