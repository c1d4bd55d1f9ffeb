"""The model and the data that a configuration names."""

from loradock.checks.base import Check

CHECKS: tuple[Check, ...] = ()
