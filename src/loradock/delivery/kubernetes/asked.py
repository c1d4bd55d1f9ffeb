"""From texts as they are typed to the parts of a Workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from loradock.delivery.kubernetes.sizes import Sizes
from loradock.delivery.kubernetes.workload import SecretVariable, Toleration, Volume
from loradock.errors import UsageError

DATA, OUTPUT, CACHE, SCRATCH, SHM = "/data", "/output", "/cache", "/tmp", "/dev/shm"


def output(directory: str, *, name: str) -> str:
    """Where a run that asked for this directory writes in its pod: below the output's volume, by the last part."""
    return str(PurePosixPath(OUTPUT, PurePosixPath(directory).name or name))


def secret_variable(text: str) -> SecretVariable:
    """`NAME=SECRET:KEY`."""
    name, equals, reference = text.partition("=")
    secret, colon, key = reference.partition(":")
    if not equals or not colon:
        what = f"--secret-env {name} names no Secret and key; a value is never written into a manifest"
        raise UsageError(what, hint="--secret-env HF_TOKEN=hub:token")
    return SecretVariable(name=name, secret=secret, key=key)


def toleration(text: str) -> Toleration:
    """`KEY[=VALUE][:EFFECT]`."""
    taint, colon, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    return Toleration(key=key, value=value if equals else None, effect=effect if colon else None)


def volumes(
    sizes: Sizes, *, claims: Mapping[str, str | None], host_paths: Mapping[str, str], fetched_bytes: int | None
) -> tuple[Volume, ...]:
    """The volumes of a run. `fetched_bytes`: /data is empty and as large, and an init container fills it."""
    volumes_found: list[Volume] = []
    for name, path in (("data", DATA), ("output", OUTPUT), ("cache", CACHE)):
        claim, host_path = claims.get(name), host_paths.get(name)
        is_fetched = name == "data" and fetched_bytes is not None
        if claim is not None or host_path is not None:
            is_read_only = name == "data"
            volumes_found.append(
                Volume(name=name, path=path, claim=claim, host_path=host_path, is_read_only=is_read_only)
            )
        elif is_fetched:
            volumes_found.append(Volume(name=name, path=path, size_bytes=fetched_bytes or 0, is_read_only=True))
        elif name == "output":
            volumes_found.append(Volume(name=name, path=path, size_bytes=sizes.output_bytes.value))
    scratch = Volume(name="tmp", path=SCRATCH, size_bytes=sizes.scratch_bytes.value, is_site=True)
    shm = Volume(name="shm", path=SHM, size_bytes=sizes.shm_bytes.value, is_memory=True, is_site=True)
    return (*volumes_found, scratch, shm)
