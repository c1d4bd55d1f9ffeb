"""What scripts/gpu-wheels does to a folder of wheels: `gpu_wheels.py DIR needs|slim`.

needs: prints the exact version of pydantic-core that the gathered pydantic requires.
slim: cuts out of each wheel what a GPU host does not load, with a RECORD that says so, and prints the size.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

CUTS = {
    "bitsandbytes": r"libbitsandbytes_(?!cpu|cuda12[89]|cuda13)",  # libraries for other releases of CUDA
    "unsloth": r"^(?!unsloth/|unsloth_cli/|unsloth-[^/]*dist-info/)",  # its web studio
}
"""By project, the members of its wheel to leave out."""


def needs(folder: Path) -> list[str]:
    """Requirements that only the metadata of a gathered wheel tells: pydantic and its core go together exactly."""
    found: list[str] = []
    for wheel in folder.glob("pydantic-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            text = archive.read(name).decode()
        found += re.findall(r"^Requires-Dist: (pydantic-core==[\w.]+)", text, flags=re.MULTILINE)
    return found


def slim(wheel: Path, *, cut: str) -> None:
    """Write the wheel again without the members that match `cut`."""
    target = wheel.with_suffix(".slim")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        (record,) = (name for name in source.namelist() if name.endswith(".dist-info/RECORD"))
        rows: list[str] = []
        for name in source.namelist():
            if name in (record,) or name.endswith("/") or re.search(cut, name):
                continue
            body = source.read(name)
            archive.writestr(name, body)
            digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(body)}")
        archive.writestr(record, "\n".join([*rows, f"{record},,", ""]))
    target.replace(wheel)


def main() -> None:
    """Do what the second argument says."""
    folder = Path(sys.argv[1])
    if sys.argv[2] == "needs":
        print(*needs(folder), sep="\n")
        return
    for project, cut in CUTS.items():
        for wheel in folder.glob(f"{project}-*.whl"):
            slim(wheel, cut=cut)
    total = sum(file.stat().st_size for file in folder.glob("*.whl"))
    print(f"{total / 2**20:.1f} MiB in {folder}")


if __name__ == "__main__":
    main()
