"""Limits: open files, address space, file size, CPU time and locked memory of this process, as ulimit sets them."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.system.loading import loading
from loradock.facts import Facts
from loradock.machine import Host

GIB = 1 << 30
FILES, FILES_PER_GPU, MANY_FILES = 512, 128, 65_536
IMPORT_BYTES, STACK_BYTES = 7 * GIB, 16 * GIB
FILE_BYTES = GIB
LIMIT = tuple[int | None, int | None]


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The soft limits of this process are those of the run that it becomes."""
    findings = [
        *open_files(host.limit("open files"), facts, plan),
        *address_space(host.limit("address space"), facts, plan),
        *others(file_size=host.limit("file size"), cpu=host.limit("CPU seconds")),
    ]
    if len(facts.gpus) > 1 and host.names("/sys/class/infiniband"):
        findings += locked_memory(host.limit("locked memory"), facts)
    return findings or [ok(f"{_count(host.limit('open files')[0])} open files, no other limit that affects a run")]


def open_files(limit: LIMIT, facts: Facts, plan: Intent) -> list[Finding]:
    """Each tensor that a loader worker hands over is an open file, and NCCL opens some for each GPU."""
    soft, hard = limit
    needed = FILES + loading(facts, plan).open_files + FILES_PER_GPU * max(0, len(facts.gpus) - 1)
    if soft is None or soft >= needed:
        return []
    least = max(MANY_FILES, needed)
    can_raise = hard is None or hard >= needed
    remedy = f"ulimit -n {min(least, hard or least)}" if can_raise else _raised("nofile", least, facts)
    return [warning(f"{soft} files may be open at once, a run opens up to {needed}", remedy=remedy)]


def address_space(limit: LIMIT, facts: Facts, plan: Intent) -> list[Finding]:
    """CUDA reserves addresses for all memory of the machine and of its GPUs; the libraries map some GiB."""
    soft, hard = limit
    reserved = facts.memory_bytes + sum(gpu.memory_bytes for gpu in facts.gpus) if plan.uses_gpu(facts) else 0
    needed = max(STACK_BYTES, reserved)
    if soft is None or soft >= needed:
        return []
    why = "CUDA reserves" if reserved else "the libraries and a run map"
    what = f"the address space is limited to {soft / GIB:.1f} GiB, {why} about {needed / GIB:.0f} GiB"
    remedy = "ulimit -v unlimited" if hard is None else "sudo prlimit --as=unlimited --pid $$"
    return [error(what, remedy=remedy) if soft < max(IMPORT_BYTES, reserved) else warning(what, remedy=remedy)]


def others(*, file_size: LIMIT, cpu: LIMIT) -> list[Finding]:
    """Limits that end a run with a signal when it is well under way."""
    findings: list[Finding] = []
    if file_size[0] is not None and file_size[0] < FILE_BYTES:
        what = f"files are limited to {file_size[0] / (1 << 20):.0f} MiB: a larger checkpoint ends the run"
        findings.append(warning(what, remedy=_unlimited("f", "fsize", file_size)))
    if cpu[0] is not None:
        what = f"the process is killed after {cpu[0]} s of CPU time"
        findings.append(warning(what, remedy=_unlimited("t", "cpu", cpu)))
    return findings


def locked_memory(limit: LIMIT, facts: Facts) -> list[Finding]:
    """InfiniBand registers the buffers of NCCL as locked memory."""
    if limit[0] is None:
        return []
    what = f"locked memory is limited to {limit[0] >> 20} MiB: NCCL cannot register its buffers for InfiniBand"
    return [warning(what, remedy=_raised("memlock", -1, facts))]


def _unlimited(letter: str, name: str, limit: LIMIT) -> str:
    return f"ulimit -{letter} unlimited" if limit[1] is None else f"sudo prlimit --{name}=unlimited --pid $$"


def _raised(name: str, value: int, facts: Facts) -> str:
    if facts.in_container:
        return f"docker run --ulimit {name}={value} ..."
    return f"sudo prlimit --{name}={'unlimited' if value < 0 else value} --pid $$"


def _count(limit: int | None) -> str:
    return "any number of" if limit is None else str(limit)


CHECK = Check(
    name="limits",
    group="system",
    proves="ulimit allows the open files, address space, file sizes and CPU time that a run needs.",
    look=look,
)
