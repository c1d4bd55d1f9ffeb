"""Cards and driver, as NVML and the driver's library describe them."""

from loradock.checks.base import Check

CHECKS: tuple[Check, ...] = ()
