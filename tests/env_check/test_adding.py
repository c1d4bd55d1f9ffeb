"""docs/adding.md's check, carried out on a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from env_check.test_remedies import faults
from facts.recorded import machine

import loradock
from loradock.machine import Host

PAGE = Path(__file__).parents[2] / "docs" / "adding.md"
SWAPPED = "MemTotal: 100 kB\nSwapTotal:       8388608 kB\nSwapFree:        4194304 kB\n"


class Swapping(Host):
    """A machine with 4 of 8 GiB of swap in use."""

    def read_text(self, path: str) -> str | None:
        return SWAPPED if path == "/proc/meminfo" else super().read_text(path)


def test_the_check_of_the_walk_through_works_as_printed(tmp_path: Path) -> None:
    module, name, entry = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[2:5]
    package = tmp_path / "loradock"
    shutil.copytree(Path(loradock.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "demo"))
    table = package / "env_check" / "system" / "__init__.py"
    (table.parent / "swap.py").write_text(module, "utf-8")
    text = table.read_text("utf-8")
    for opening, line in (("import (\n", name), ("CHECKS: tuple[Check, ...] = (\n", entry)):
        assert text.count(opening) == 1
        text = text.replace(opening, f"{opening}{line}")
    table.write_text(text, "utf-8")
    command = [sys.executable, "-m", "loradock", "env-check", "--level", "quick", "--only", "swap"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"swap +memory is in memory", done.stdout) or "lies in swap" in done.stdout
    names: dict[str, object] = {}
    exec(compile(module, "swap.py", "exec"), names)
    (found,) = names["look"](Swapping(), machine(), None)  # type: ignore[operator]
    assert (found.severity, found.what) == ("warning", "more than 1 GiB lies in swap")
    assert found.measured == {"swap_used_bytes": 4 << 30}
    assert not list(faults(found.remedy))
