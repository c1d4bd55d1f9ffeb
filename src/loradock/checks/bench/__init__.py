"""How fast the machine is, against what is known of its parts."""

from loradock.checks.base import Check

CHECKS: tuple[Check, ...] = ()
