"""How fast a folder takes and gives back bytes: written to the disk with fsync, read back past the page cache."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from loradock.machine.machine import Machine

BLOCK_BYTES = 8 << 20


class DiskSpeed(Machine):
    """Timed writing and reading. The file that it needs has no name, so it goes with the process at the latest."""

    def disk_seconds(self, folder: Path, *, size_bytes: int) -> tuple[float, float]:
        """Seconds to write this much to the disk, and to read it back from there. Raises OSError."""
        block = os.urandom(min(BLOCK_BYTES, size_bytes))
        blocks = max(1, size_bytes // len(block))
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            began = time.perf_counter()
            for _ in range(blocks):
                os.write(file.fileno(), block)
            os.fsync(file.fileno())
            written = time.perf_counter() - began
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            began = time.perf_counter()
            while os.read(file.fileno(), len(block)):
                pass
            return written, time.perf_counter() - began
