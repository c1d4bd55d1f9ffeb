"""Real computations on this machine's device, against a reference."""

from loradock.checks.base import Check

CHECKS: tuple[Check, ...] = ()
