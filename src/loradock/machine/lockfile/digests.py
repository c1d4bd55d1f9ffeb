"""The digests of many files at once: hashlib lets other threads run while it works, so every CPU hashes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

SMALL_BYTES = 1 << 20
UNIT_BYTES = 8 << 20
UNIT_FILES = 256
MAX_THREADS = 16

# {algorithm: digest}, or the reason why the file could not be read.
Digests = dict[str, bytes] | str


def digest_files(
    requests: Mapping[str, set[str]], *, progress: Callable[[int, int], None] | None = None
) -> tuple[dict[str, Digests], int]:
    """({path: digests of the algorithms wanted for it}, bytes read). Biggest files first.

    `progress` is called with (bytes done, bytes in all), from the calling thread.
    """
    sizes = {path: _size(path) for path in requests}
    total_bytes = sum(sizes.values())
    done_bytes = 0
    digests: dict[str, Digests] = {}
    threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(_digest_unit, unit, requests): unit for unit in _units(sizes)}
        for future in as_completed(waiting):
            digests.update(future.result())
            done_bytes += sum(sizes[path] for path in waiting[future])
            if progress:
                progress(done_bytes, total_bytes)
    return digests, done_bytes


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _units(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Files in portions worth a thread's while: handing over one small file costs more than hashing it."""
    unit: list[str] = []
    unit_bytes = 0
    for path in sorted(sizes, key=lambda entry: -sizes[entry]):
        unit.append(path)
        unit_bytes += sizes[path]
        if unit_bytes >= UNIT_BYTES or len(unit) >= UNIT_FILES:
            yield unit
            unit, unit_bytes = [], 0
    if unit:
        yield unit


def _digest_unit(paths: list[str], requests: Mapping[str, set[str]]) -> dict[str, Digests]:
    return {path: _digest(path, requests[path]) for path in paths}


def _digest(path: str, algorithms: set[str]) -> Digests:
    try:
        # A pipe in a file's place would be waited on for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return "it is not a regular file"
            if status.st_size <= SMALL_BYTES:
                content = stream.read()
                return {name: hashlib.new(name, content).digest() for name in algorithms}
            digests: dict[str, bytes] = {}
            for name in algorithms:
                stream.seek(0)
                digests[name] = hashlib.file_digest(stream, name).digest()
            return digests
    except OSError as error:
        return error.strerror or str(error)
