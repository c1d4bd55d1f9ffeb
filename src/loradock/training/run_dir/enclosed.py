"""The record that goes with an adapter: what `loradock reproduce` needs of its run, wherever the adapter is taken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loradock.files import atomic_io
from loradock.training.run_dir.paths import METRICS, RECORD

FOLDER = "run"
"""In the adapter's directory, as in the folder of a bundle."""
KEPT = (
    "loradock", "run_id", "name", "started", "attempts", "continued", "resumed_from", "allowed_changes", "config",
    "working_directory", "facts", "environment", "code_sha256", "base", "data", "plan", "shrunk", "fingerprint",
    "outcome", "adapter_sha256",
)  # fmt: skip
"""Parts of run.json; not among them is what was found of the machine that changes no bit."""


def write(content: Mapping[str, Any], directory: Path, adapter: Path) -> None:
    """Put the record and the measured steps of the run in `directory` into its adapter. Raises OSError."""
    folder = adapter / FOLDER
    folder.mkdir(exist_ok=True)
    parts = {name: content[name] for name in KEPT if name in content}
    atomic_io.replace(folder / RECORD, json.dumps(parts, indent=2, default=str) + "\n")
    if (directory / METRICS).is_file():
        shutil.copyfile(directory / METRICS, folder / METRICS)
