"""The machine itself: files under /proc and /sys, the environment, processes, limits and installed packages."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import pwd
import re
import resource
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from loradock.files import regular
from loradock.machine.answers import ProcessOne

LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "address space": resource.RLIMIT_AS,
    "file size": resource.RLIMIT_FSIZE,
    "CPU seconds": resource.RLIMIT_CPU,
}
SIGTERM_BIT = 1 << 14


class Machine:
    """What every Linux machine answers."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of this process."""
        return os.environ

    def read_text(self, path: str) -> str | None:
        """The text of a file, or None where it does not exist or may not be read."""
        try:
            return regular.read(Path(path)).decode(errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """True where the path exists."""
        return os.path.exists(path)

    def cpus_allowed(self) -> int:
        """CPUs that the scheduler lets this process use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def memory_bytes(self) -> int:
        """Physical memory of the machine in bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def platform(self) -> str:
        """Kernel and architecture, as in Linux-6.1-x86_64."""
        return platform.platform()

    def python(self) -> str:
        """The version of the running Python."""
        return platform.python_version()

    def package_version(self, name: str) -> str | None:
        """The installed version of a distribution, or None."""
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    def output_of(self, command: Sequence[str], *, timeout_seconds: float = 5.0) -> str | None:
        """What a command prints, stripped; None where it is missing, fails or takes too long."""
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return result.stdout.strip()

    def machine(self) -> str:
        """The architecture, as in x86_64."""
        return platform.machine()

    def glibc(self) -> tuple[int, ...] | None:
        """The version of glibc, (2, 36); None where the C library is another one."""
        try:
            text = os.confstr("CS_GNU_LIBC_VERSION") or ""
        except (ValueError, OSError):
            return None
        return tuple(int(part) for part in text.removeprefix("glibc ").split(".")[:2]) if text else None

    def now_seconds(self) -> float:
        """The clock on the wall, in seconds of the epoch."""
        return time.time()

    def limit(self, name: str) -> tuple[int | None, int | None]:
        """The soft and the hard limit by its name in LIMITS; None where there is none. Memory in bytes."""
        soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(LIMITS[name]))
        return soft, hard

    def uid(self) -> int:
        """The effective user."""
        return os.geteuid()

    def user_name(self) -> str | None:
        """The name of this uid in the user database, or None."""
        entry = _user(self.uid())
        return entry.pw_name if entry else None

    def user_home(self) -> str | None:
        """The home of this uid in the user database, or None."""
        entry = _user(self.uid())
        return entry.pw_dir if entry else None

    def program(self, name: str) -> str | None:
        """The path of a program by its name or path, as a shell would find it, or None."""
        return shutil.which(name, path=self.environ.get("PATH"))

    def python_headers(self) -> str:
        """The folder that should hold Python.h, by the scheme that Triton goes by too."""
        scheme = sysconfig.get_default_scheme()
        return sysconfig.get_paths(scheme="posix_prefix" if scheme == "posix_local" else scheme)["include"]

    def cgroup_values(self, controller: str, v2: str, v1: str) -> tuple[int, ...]:
        """The numbers in a file of this process's cgroup and of those above it, nearest first.

        `v2` and `v1` are the file's names in both versions of cgroups; "max" and missing files are left out.
        """
        texts = [
            self.read_text(f"{folder}/{v1}") for folder in self._cgroups(controller, f"/sys/fs/cgroup/{controller}")
        ]
        texts += [self.read_text(f"{folder}/{v2}") for folder in self._cgroups("", "/sys/fs/cgroup")]
        return tuple(int(text) for text in texts if text and text.strip().isdigit())

    def cgroup_memory_free(self) -> tuple[int, ...]:
        """Bytes below its limit that this process's cgroup and each above it with one has, nearest first.

        Pages of files that are not in use (`inactive_file`) are given back when they are needed, and count as free.
        """
        files = [
            (folder, ("memory.limit_in_bytes", "memory.usage_in_bytes"))
            for folder in self._cgroups("memory", "/sys/fs/cgroup/memory")
        ]
        files += [(folder, ("memory.max", "memory.current")) for folder in self._cgroups("", "/sys/fs/cgroup")]
        free: list[int] = []
        for folder, names in files:
            limit, used = ((self.read_text(f"{folder}/{name}") or "").strip() for name in names)
            if limit.isdigit() and used.isdigit():
                stat = self.read_text(f"{folder}/memory.stat") or ""
                unused = re.search(r"^total_inactive_file (\d+)$", stat, re.MULTILINE)  # v1: with the cgroups below
                unused = unused or re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)
                free.append(int(limit) - int(used) + (int(unused[1]) if unused else 0))
        return tuple(free)

    def cpu_quotas(self) -> tuple[float, ...]:
        """CPUs that this process's cgroup and those above it leave it; nothing where there is no limit."""
        pairs = [
            (self.read_text(f"{folder}/cpu.cfs_quota_us") or "", self.read_text(f"{folder}/cpu.cfs_period_us") or "")
            for folder in self._cgroups("cpu", "/sys/fs/cgroup/cpu")
        ]
        texts = [self.read_text(f"{folder}/cpu.max") or "" for folder in self._cgroups("", "/sys/fs/cgroup")]
        numbers = [
            *(f"{quota} {period or 100_000}".split() for quota, period in pairs),
            *(text.split() for text in texts),
        ]
        return tuple(int(number[0]) / int(number[1]) for number in numbers if len(number) == 2 and number[0].isdigit())

    def _cgroups(self, controller: str, root: str) -> list[str]:
        """Folders of this process's cgroup in a hierarchy, nearest first; the root alone in a namespace of cgroups."""
        for line in (self.read_text("/proc/self/cgroup") or "").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                folder = Path(path.lstrip("/"))
                return [
                    str(Path(root, parent)) for parent in (folder, *folder.parents) if ".." not in folder.parts
                ] or [root]
        return [root]

    def process_one(self) -> ProcessOne | None:
        """PID 1, or None where it may not be seen."""
        lines = (self.read_text("/proc/1/status") or "").splitlines()
        values = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if not values.get("SigCgt") or not values.get("SigBlk"):
            return None
        heard = int(values["SigCgt"], 16) | int(values["SigBlk"], 16)
        return ProcessOne(name=values.get("Name", ""), hears_sigterm=bool(heard & SIGTERM_BIT))

    def orphan_is_reaped(self, *, timeout_seconds: float = 1.5) -> bool:
        """Leave a process without its parent, and see whether whoever inherits it clears it away when it has ended.

        Where nobody does, one dead entry stays in the table of processes until PID 1 ends.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _leave_an_orphan(writing)
        os.close(writing)
        with os.fdopen(reading) as reader:
            os.waitpid(child, 0)
            orphan = int(reader.read() or 0)
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(PermissionError):
                try:
                    os.kill(orphan, 0)
                except ProcessLookupError:
                    return True
            time.sleep(0.002)
        return False


def _user(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _leave_an_orphan(writing: int) -> None:
    """In a child: start one more, tell its PID, end. The one that is left ends once its parent has."""
    try:
        parent = os.getpid()
        orphan = os.fork()
        if orphan:
            os.write(writing, str(orphan).encode())
        else:
            os.close(writing)
            while os.getppid() == parent:
                time.sleep(0.001)
    finally:
        os._exit(0)
