"""The ordered table of kinds. To add one: a module with a `KIND`, and its line here; tests/kubernetes renders it."""

from __future__ import annotations

from loradock.kubernetes.kinds import (
    job,
    jobset,
    pod,
    trainjob,
)
from loradock.kubernetes.kinds.base import Kind

__all__ = ["KINDS", "Kind", "named"]

KINDS: tuple[Kind, ...] = (pod.KIND, job.KIND, jobset.KIND, trainjob.KIND)


def named(name: str) -> Kind:
    """The kind of this name."""
    return next(kind for kind in KINDS if kind.name == name)
