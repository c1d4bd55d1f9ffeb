"""A real small virtual environment: a few distributions of this one, copied file by file with their RECORDs."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
from base64 import urlsafe_b64encode
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = ("click", "idna", "packaging", "pygments")


def make_venv(folder: Path) -> Path:
    """The environment `folder/venv` and, beside it, `requirements.lock`: the real lock's entries for NAMES."""
    prefix = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    for name in NAMES:
        install(prefix, name)
    text = (ROOT / "docker" / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[a-z0-9])", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    kept = [entry for entry in entries if entry.strip().partition("==")[0] in NAMES]
    (folder / "requirements.lock").write_text("\n".join(kept) + "\n", encoding="utf-8")
    return prefix


def site_of(prefix: Path) -> Path:
    return next(prefix.glob("lib/python3.*/site-packages"))


def dist_info(prefix: Path, name: str) -> Path:
    return next(site_of(prefix).glob(f"{name}-*.dist-info"))


def install(prefix: Path, name: str) -> None:
    """Copy a distribution of this environment to another."""
    site = site_of(prefix)
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        target = Path(site, str(file))
        if not source.name.endswith(".pyc"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.resolve(), target)


def append(path: Path, content: bytes) -> None:
    path.write_bytes(path.read_bytes() + content)


def rerecord(prefix: Path, name: str, file: str) -> None:
    """What somebody does who hides a change: RECORD is given the hash and size of `file` as it is now."""
    record = dist_info(prefix, name) / "RECORD"
    content = (site_of(prefix) / file).read_bytes()
    digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    with record.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.reader(stream) if row[0] != file]
    rows.append([file, f"sha256={digest}", str(len(content))])
    with record.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


def seal(prefix: Path) -> str:
    """Write the manifest beside the lock, as the image's build does; its digest."""
    paths = sorted(str(path) for path in prefix.rglob("*") if path.is_file() and not path.is_symlink())
    lines = [f"{hashlib.sha256(Path(path).read_bytes()).hexdigest()}  {path}\n" for path in paths]
    manifest = prefix.parent / "manifest.sha256"
    manifest.write_text("".join(lines), encoding="utf-8")
    return hashlib.sha256(manifest.read_bytes()).hexdigest()
