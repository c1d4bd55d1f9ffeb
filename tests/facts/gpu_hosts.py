"""Hosts with GPUs, from tests/facts/gpu_hosts.json, as a `Host` that checks can ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loradock.machine import Host
from loradock.machine.answers import DriverState, GpuProcess, GpuState, MigInstance

FILE = Path(__file__).with_name("gpu_hosts.json")
VIRTUAL = "flags\t\t: fpu vme hypervisor avx2\n"


def recorded() -> dict[str, dict[str, Any]]:
    """Every host of the file by its key, as it is written there."""
    return {host["key"]: host for host in json.loads(FILE.read_text(encoding="utf-8"))["hosts"]}


class GpuHost(Host):
    """A host of the file. `change` is applied to its first GPU, `driver`, `environ` and `files` to the rest."""

    def __init__(
        self,
        key: str,
        *,
        environ: Mapping[str, str] | None = None,
        change: Mapping[str, Any] | None = None,
        driver: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        host = recorded()[key]
        self.made = host["made"] if not (change or driver or files) else "constructed"
        self.variables = dict(environ or {})
        self.files = {"/proc/cpuinfo": VIRTUAL} if host.get("is_virtual") else {}
        if host.get("in_container"):
            self.files["/.dockerenv"] = ""
        self.files |= files or {}
        told = {"nodes": tuple(host["driver"].pop("nodes", ())), **host["driver"], **(driver or {})}
        self.told = DriverState(**told)
        self.states = tuple(gpu(index, written) for index, written in enumerate(host["cards"]))
        if change:
            self.states = (replace(self.states[0], **change), *self.states[1:])
        self.log = tuple(host["raw"])

    @property
    def environ(self) -> Mapping[str, str]:
        return self.variables

    def read_text(self, path: str) -> str | None:
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        return path in self.files

    def cpus_allowed(self) -> int:
        return 16

    def memory_bytes(self) -> int:
        return 64 << 30

    def nvml(self, *, afresh: bool = False) -> tuple[tuple[GpuState, ...], DriverState]:
        return self.states, self.told

    def driver(self) -> DriverState:
        return self.told

    def kernel_log(self) -> tuple[str, ...] | None:
        return self.log


def gpu(index: int, written: Mapping[str, Any]) -> GpuState:
    """A GPU of the file: memory is written in MiB there, and what nobody recorded is left out."""
    known: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in written.items()}
    memory = known.pop("memory_mib", 16384)
    sizes = known.pop("mig_instances_mib", ())
    used = known.pop("used_mib", None)
    instances = tuple(
        MigInstance(uuid=f"MIG-{number}", name=f"{known['name']} MIG 2g.20gb", memory_bytes=size << 20)
        for number, size in enumerate(sizes)
    )
    processes = tuple(GpuProcess(pid=pid) for pid in known.pop("pids", ()))
    return GpuState(
        index=index,
        memory_bytes=None if "failure" in known else memory << 20,
        used_bytes=None if used is None else used << 20,
        mig_instances=instances,
        processes=processes,
        **known,
    )
