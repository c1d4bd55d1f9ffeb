"""The machine or the container: limits, folders, users, tools."""

from loradock.checks.base import Check
from loradock.checks.system import processors

CHECKS: tuple[Check, ...] = (processors.CHECK,)
