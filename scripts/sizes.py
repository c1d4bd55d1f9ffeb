"""Measures docker/sizes.json, from which `loradock build` knows what a build needs: scripts/sizes.py WHEELS.

WHEELS is a folder that holds every locked wheel of one Python (SCRATCH/wheels after a build). Each package counts with
its wheel, and with its files as installed: what the wheel holds, plus byte code, which is about as large as the source.
The stages were measured once by hand (`docker history`, `find`); the base images are those of the vendor, estimated.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = ROOT / "docker" / "sizes.json"
LOCKED = re.compile(r"^([a-z0-9][\w.-]*)==([^\s;]+)", re.MULTILINE)
MEGABYTE = 1_000_000
STAGES = {
    "base": {"bytes": 400 * MEGABYTE, "files": 12_000, "measured": False},
    "system": {"bytes": 315 * MEGABYTE, "files": 9_000, "measured": True},
    "system-deepspeed": {"bytes": 90 * MEGABYTE, "files": 2_500, "measured": False},
    "wheels": {"bytes": 12 * MEGABYTE, "files": 1_300, "measured": True},
    "loradock": {"bytes": 15 * MEGABYTE, "files": 500, "measured": True},
    "devel": {"bytes": 9_000 * MEGABYTE, "files": 40_000, "measured": False},
    "flash-attn-toolchain": {"bytes": 400 * MEGABYTE, "files": 9_000, "measured": True},
    "flash-attn-tree": {"bytes": 9_000 * MEGABYTE, "files": 60_000, "measured": True},
}


def measure(wheel: Path) -> dict[str, int | str]:
    """Version, bytes of the wheel, and bytes and files once it is installed and byte-compiled."""
    with zipfile.ZipFile(wheel) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    source = [entry for entry in entries if entry.filename.endswith(".py")]
    return {
        "version": wheel.name.split("-")[1],
        "wheel_bytes": wheel.stat().st_size,
        "installed_bytes": sum(entry.file_size for entry in entries) + sum(entry.file_size for entry in source),
        "files": len(entries) + len(source),
    }


def main() -> int:
    """Write the file; 1 when a locked package's wheel is not there (one for another Python may be missing)."""
    if len(sys.argv) != 2:
        print("usage: scripts/sizes.py WHEELS", file=sys.stderr)
        return 2
    wheels = {
        (re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower(), path.name.split("-")[1]): path
        for path in sorted(Path(sys.argv[1]).glob("*.whl"))
    }
    locked = LOCKED.findall((ROOT / "docker" / "requirements.lock").read_text(encoding="utf-8"))
    packages = {name: measure(wheels[name, version]) for name, version in locked if (name, version) in wheels}
    SIZES.write_text(json.dumps({"stages": STAGES, "packages": packages}, indent=1) + "\n", encoding="utf-8")
    missing = sorted({name for name, _ in locked} - set(packages))
    if missing:
        print(
            f"error: no wheel of {', '.join(missing)}\nhint: loradock build --scratch DIR, then again", file=sys.stderr
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
