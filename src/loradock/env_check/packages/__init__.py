"""Installed packages: as locked, and fit for one another."""

from loradock.env_check.base import Check
from loradock.env_check.packages import (
    bitsandbytes_variables,
    builds,
    cuda_packages,
    cuda_runtimes,
    deepspeed,
    libraries,
    library_variables,
    lock,
    protobuf,
    python_path,
    versions,
)

CHECKS: tuple[Check, ...] = (
    versions.CHECK,
    python_path.CHECK,
    library_variables.CHECK,
    bitsandbytes_variables.CHECK,
    cuda_packages.CHECK,
    libraries.CHECK,
    builds.CHECK,
    cuda_runtimes.CHECK,
    protobuf.CHECK,
    deepspeed.CHECK,
    lock.CHECK,
)
