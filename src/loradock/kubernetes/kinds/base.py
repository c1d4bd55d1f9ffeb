"""The type of a kind: a way to run a workload on Kubernetes, as objects to be applied.

A member is one module with a `KIND`: a name, the name of its container (which policies and patches refer to), and
`objects(workload)`, pure, which builds dicts. UsageError for a workload that the kind cannot run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loradock.kubernetes.workload import Workload

CONTAINER = "train"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """`about` says in a line what it is for."""

    name: str
    about: str
    objects: Callable[[Workload], list[dict[str, Any]]]
    container: str = CONTAINER
