"""docs/adding.md's check, carried out on a copy of the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

from adding import copied, insert, parts_of, typed
from env_check.test_remedies import faults
from facts.recorded import machine

from loradock.machine import Host

SWAPPED = "MemTotal: 100 kB\nSwapTotal:       8388608 kB\nSwapFree:        4194304 kB\n"


class Swapping(Host):
    """A machine with 4 of 8 GiB of swap in use."""

    def read_text(self, path: str) -> str | None:
        return SWAPPED if path == "/proc/meminfo" else super().read_text(path)


def test_the_check_of_the_walk_through_works_as_printed(tmp_path: Path) -> None:
    module, name, entry = parts_of("An environment check, step by step")
    package = copied(tmp_path)
    table = package / "env_check" / "system" / "__init__.py"
    (table.parent / "swap.py").write_text(module, "utf-8")
    insert(table, name, after="import (\n")
    insert(table, entry, after="CHECKS: tuple[Check, ...] = (\n")
    done = typed(tmp_path, "env-check", "--level", "quick", "--only", "swap")
    assert done.returncode == 0, done.stderr
    assert re.search(r"swap +memory is in memory", done.stdout) or "lies in swap" in done.stdout
    document = json.loads(typed(tmp_path, "env-check", "--only", "swap", "--json").stdout)
    assert [(finding["check"], finding["group"]) for finding in document["findings"]] == [("swap", "system")]
    assert "swap_used_bytes" in document["measured"]["swap"]
    assert "Nothing that is needed lies in swap." in typed(tmp_path, "env-check", "--list").stdout
    names: dict[str, object] = {}
    exec(compile(module, "swap.py", "exec"), names)
    (found,) = names["look"](Swapping(), machine(), None)  # type: ignore[operator]
    assert (found.severity, found.what) == ("warning", "more than 1 GiB lies in swap")
    assert found.measured == {"swap_used_bytes": 4 << 30}
    assert not list(faults(found.remedy))
