"""Folders of a run by their role: how to move each, and how to name several of them. No check itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from loradock.env_check.base import Intent
from loradock.errors import DiskFull, LoradockError, NotWritable, StorageError

FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)


def elsewhere(role: str, plan: Intent) -> str:
    """The remedy that puts the folder of this role on another disk."""
    if role == "cache" and plan.config is not None and plan.config.data.cache:
        return "loradock train --set data.cache=DIR ..."
    return {
        "output": "loradock train --output DIR ...",
        "cache": "export LORADOCK_CACHE=DIR",
        "scratch": "export TMPDIR=DIR",
    }[role]


def listed(names: Sequence[str]) -> str:
    """As a sentence lists them: output, cache and scratch."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def ending(number: int) -> type[LoradockError]:
    """What a run ends with on this errno."""
    return DiskFull if number in FULL else NotWritable if number in REFUSED else StorageError


def reason(number: int) -> str:
    """The words of an errno."""
    return os.strerror(number)
