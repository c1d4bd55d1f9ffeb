"""The ordered table of checks, a folder for each group.

To add one: a module with a `CHECK`, and its line in the table of its group.

Within a group checks run in the order of the table; none relies on what another one found.
"""

from loradock.env_check import bench, compute, gpu, model, packages, system
from loradock.env_check.base import Check

CHECKS: tuple[Check, ...] = (
    *system.CHECKS,
    *gpu.CHECKS,
    *packages.CHECKS,
    *model.CHECKS,
    *compute.CHECKS,
    *bench.CHECKS,
)

GROUPS: dict[str, str] = {
    "system": "the machine or the container",
    "gpu": "GPUs and driver",
    "packages": "installed packages",
    "model": "the configured model and data",
    "compute": "real computations, compared with a reference",
    "bench": "how fast the machine is",
}
