"""Cards and driver, as NVML and the driver's library describe them."""

from loradock.checks.base import Check
from loradock.checks.gpu import (
    architecture,
    card_memory,
    cards,
    clocks,
    driver,
    ecc,
    mig,
    nvlink,
    pcie,
    power,
    throttle,
    visible,
    xid,
)

CHECKS: tuple[Check, ...] = (
    cards.CHECK,
    driver.CHECK,
    architecture.CHECK,
    visible.CHECK,
    mig.CHECK,
    ecc.CHECK,
    xid.CHECK,
    throttle.CHECK,
    clocks.CHECK,
    power.CHECK,
    card_memory.CHECK,
    pcie.CHECK,
    nvlink.CHECK,
)
