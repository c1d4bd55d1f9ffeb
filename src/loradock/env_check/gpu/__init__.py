"""GPUs and driver, as NVML and the driver's library describe them."""

from loradock.env_check.base import Check
from loradock.env_check.gpu import (
    architecture,
    clocks,
    driver,
    ecc,
    gpu_memory,
    gpus,
    mig,
    nvlink,
    pcie,
    power,
    throttle,
    visible,
    xid,
)

CHECKS: tuple[Check, ...] = (
    gpus.CHECK,
    driver.CHECK,
    architecture.CHECK,
    visible.CHECK,
    mig.CHECK,
    ecc.CHECK,
    xid.CHECK,
    throttle.CHECK,
    clocks.CHECK,
    power.CHECK,
    gpu_memory.CHECK,
    pcie.CHECK,
    nvlink.CHECK,
)
