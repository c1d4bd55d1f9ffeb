"""Reading needs the memory of a few rows, whatever the size of the file.

The peak is VmHWM, which starts again with a program; ru_maxrss would carry that of the test run into it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thin(1)

ROW = {"instruction": "What is this? " * 20, "input": "", "output": "An answer of some length. " * 20}
GROWTH_BYTES = 32 * 2**20
FILE_BYTES = 192 * 2**20
MEASURE = """
import sys
from loradock.config.sections.data import SourceConfig
from loradock.data.sources import samples
list(samples(SourceConfig(path=sys.argv[1])))
def peak_bytes():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
before = peak_bytes()
count = sum(1 for _ in samples(SourceConfig(path=sys.argv[2])))
print(count, peak_bytes() - before)
"""


def write(path: Path, size_bytes: int) -> int:
    """Write rows of about `size_bytes` in the form that the suffix says; returns their number."""
    row = json.dumps(ROW).encode()
    count = max(1, size_bytes // len(row))
    opening, between, closing = (b"[", b",", b"]") if path.suffix == ".json" else (b"", b"\n", b"\n")
    with path.open("wb") as file:
        file.write(opening + row)
        for _ in range(count - 1):
            file.write(between + row)
        file.write(closing)
    return count


@pytest.mark.thin(3)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_file_of_192_mib_is_read_within_32_mib(suffix: str, tmp_path: Path) -> None:
    small, large = tmp_path / f"small{suffix}", tmp_path / f"large{suffix}"
    write(small, 1000)
    count = write(large, FILE_BYTES)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(large)], capture_output=True, text=True, check=True, timeout=120
    )
    found, growth_bytes = map(int, done.stdout.split())
    assert found == count
    assert growth_bytes < GROWTH_BYTES


def test_a_parquet_file_is_read_batch_by_batch(tmp_path: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("instruction", pa.string()), ("output", pa.string())])
    rng = np.random.default_rng(0)
    small, large = tmp_path / "small.parquet", tmp_path / "large.parquet"
    for path, groups in ((small, 1), (large, 12)):
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for _ in range(groups):
                texts = [rng.bytes(512).hex() for _ in range(4000)]
                writer.write_table(pa.table({"instruction": texts, "output": texts}, schema=schema))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(large)], capture_output=True, text=True, check=True, timeout=120
    )
    found, growth_bytes = map(int, done.stdout.split())
    assert found == 48000
    assert growth_bytes < GROWTH_BYTES < large.stat().st_size / 2
