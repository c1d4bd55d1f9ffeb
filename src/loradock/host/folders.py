"""Folders that a run writes to: where they lie, what is free there, and what is possible there."""

from __future__ import annotations

from loradock.host.machine import Machine


class Folders(Machine):
    """File systems and folders, tried out for real."""
