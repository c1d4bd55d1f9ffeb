"""What the host answers with: GPUs and driver, folders, packages and libraries as they are found. Types only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class MigInstance:
    """A slice of a GPU that is partitioned: CUDA sees it as a GPU of its own."""

    uuid: str
    name: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU; `used_bytes` is None where the driver does not say."""

    pid: int
    used_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """One GPU as NVML describes it at this moment. None: this GPU, driver or user is not told.

    `index` is NVML's, in the order of the PCI bus. `is_visible` is False where CUDA_VISIBLE_DEVICES leaves it out,
    `is_permitted` where a cgroup gives the GPU to others. `failure` is what NVML said where the GPU does not answer.
    `memory_bytes` is None also where GPU and machine share their memory. Of the clocks, `application` is what is
    asked of the GPU now, `default` what is asked of it after a reset. ECC counts are errors since the driver was
    loaded (volatile) or ever (aggregate). `slowdowns` names what holds the clocks down now, as in `nvidia-smi -q`.
    """

    index: int
    is_visible: bool = True
    is_permitted: bool = True
    failure: str | None = None
    name: str | None = None
    uuid: str | None = None
    pci_bus: str | None = None
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    is_mig: bool | None = None
    is_mig_pending: bool | None = None
    mig_instances: tuple[MigInstance, ...] = ()
    is_ecc: bool | None = None
    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    uncorrected_aggregate: int | None = None
    has_retirement_pending: bool | None = None
    has_remap_pending: bool | None = None
    has_remap_failed: bool | None = None
    slowdowns: tuple[str, ...] | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    sm_application_mhz: int | None = None
    sm_default_mhz: int | None = None
    memory_mhz: int | None = None
    memory_max_mhz: int | None = None
    memory_application_mhz: int | None = None
    memory_default_mhz: int | None = None
    power_limit_watts: float | None = None
    power_default_watts: float | None = None
    power_enforced_watts: float | None = None
    temperature_celsius: int | None = None
    is_persistent: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: tuple[bool, ...] = ()

    @property
    def label(self) -> str:
        """How a finding names the GPU: GPU 0 (NVIDIA A10)."""
        return f"GPU {self.index} ({self.name})" if self.name else f"GPU {self.index}"


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """The NVIDIA driver: its kernel module, its two libraries, and the devices that they should serve.

    `cuda` is the newest CUDA that libcuda.so.1 speaks, 12080 for 12.8; `cuda_library` is the file that it is.
    `*_failure` is what was said where a library is missing or does not answer. `module` is the version in
    /proc/driver/nvidia/version. `devices` are PCI addresses of NVIDIA graphics devices, `nodes` those in /dev.
    """

    version: str | None = None
    nvml_failure: str | None = None
    nvml_library: str | None = None
    cuda: int | None = None
    cuda_failure: str | None = None
    cuda_library: str | None = None
    module: str | None = None
    devices: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def has_library(self) -> bool:
        """True where NVML's library is here, whatever it says."""
        return self.nvml_library is not None or self.version is not None

    @property
    def is_installed(self) -> bool:
        """True where the kernel module is loaded, its device files are here, or there is a GPU and NVML for it."""
        return bool(self.module or self.nodes or (self.devices and self.has_library))


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is free where a folder lies, for this user. `device` tells file systems apart.

    `free_inodes` is None where the file system makes them as needed.
    """

    device: int
    free_bytes: int
    total_bytes: int
    free_inodes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Mount:
    """The mount that a path lies on: where it is mounted, its kind (ext4, nfs4, fuse.sshfs), and its options."""

    point: str
    kind: str
    source: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Something tried out in `folder`; `failed` names the steps that did not work and why, by errno. Empty: all did."""

    folder: str
    failed: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, kw_only=True)
class ProcessOne:
    """PID 1 as this process sees it: its name, and whether SIGTERM reaches it.

    The kernel drops a signal that PID 1 of a PID namespace neither catches nor blocks.
    """

    name: str
    hears_sigterm: bool


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """An installed distribution, by the name (normalised) and version of its metadata; `folder` is its dist-info."""

    name: str
    version: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class SharedObject:
    """What a shared library asks of the dynamic linker; `rpath` and `runpath` are folders, with $ORIGIN unreplaced."""

    path: str
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PythonRun:
    """A program that ran in a process of its own: its lines on stdout, and its exit code (None: none in time)."""

    exit_code: int | None
    lines: tuple[str, ...] = ()
