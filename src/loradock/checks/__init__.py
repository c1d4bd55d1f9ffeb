"""The ordered table of checks. To add one: a module with a `CHECK`, and its line here.

Groups are shown in the order of GROUPS; within one, checks run in the order of the table, and a check may rely on
nothing that another one found.
"""

from loradock.checks.base import Check
from loradock.checks.system import processors

CHECKS: tuple[Check, ...] = (processors.CHECK,)

GROUPS: dict[str, str] = {
    "system": "the machine or the container",
    "gpu": "cards and driver",
    "packages": "installed packages",
    "model": "the configured model and data",
    "compute": "real computations against a reference",
    "bench": "how fast the machine is",
}
