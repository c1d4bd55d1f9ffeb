"""Shared libraries: which ones a file needs and does not find, and which ones a process has loaded."""

from __future__ import annotations

from loradock.host.machine import Machine


class Libraries(Machine):
    """Shared libraries and the search path that leads to them."""
