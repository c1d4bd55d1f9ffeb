"""How fast the machine is, against what is known of its parts."""

from loradock.env_check.base import Check
from loradock.env_check.bench import disk, gemm, host_to_device, memory_bandwidth

CHECKS: tuple[Check, ...] = (gemm.CHECK, memory_bandwidth.CHECK, host_to_device.CHECK, disk.CHECK)
