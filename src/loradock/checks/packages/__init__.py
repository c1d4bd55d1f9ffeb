"""Installed packages: as locked, and fit for one another."""

from loradock.checks.base import Check

CHECKS: tuple[Check, ...] = ()
