"""Real computations on this machine's device, against a reference.

Checks whose imports are cheap come first; those of a GPU come after `collective`, which forks.
"""

from loradock.env_check.base import Check
from loradock.env_check.compute import (
    attention_kernels,
    collective,
    dtypes,
    experts,
    optimizer,
    quantised_linear,
    training,
    triton,
)

CHECKS: tuple[Check, ...] = (
    collective.CHECK,
    dtypes.CHECK,
    optimizer.CHECK,
    triton.CHECK,
    quantised_linear.CHECK,
    attention_kernels.CHECK,
    training.CHECK,
    experts.CHECK,
)
