"""The machine or the container: limits, folders, users, tools."""

from loradock.env_check.base import Check
from loradock.env_check.system import (
    caches,
    clock,
    compiler,
    executable,
    filesystem,
    home,
    init,
    limits,
    memory,
    platform,
    processors,
    scratch,
    shared_memory,
    space,
    storage,
    tasks,
    user,
)

CHECKS: tuple[Check, ...] = (
    platform.CHECK,
    processors.CHECK,
    memory.CHECK,
    tasks.CHECK,
    limits.CHECK,
    shared_memory.CHECK,
    scratch.CHECK,
    space.CHECK,
    storage.CHECK,
    filesystem.CHECK,
    user.CHECK,
    home.CHECK,
    caches.CHECK,
    executable.CHECK,
    compiler.CHECK,
    clock.CHECK,
    init.CHECK,
)
