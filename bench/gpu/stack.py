"""What a result is of: GPU, driver, torch, packages, code. `python -m bench.gpu.stack` prints it as JSON.

In a process of its own, which leaves no memory of the GPU behind.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from bench.floor.machine import ROOT, described

NEEDED = (
    *("torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "datasets"),
    *("pydantic", "click", "rich", "yaml", "httpx", "matplotlib", "pynvml"),
)
CODE = ("src", "bench", "tests/gpu")
OWN = "bench/gpu"
"""The steps themselves: one that is mended is run again by --again, the others need not be."""


def code() -> str:
    """The first 12 digits of a sha256 over the code that is measured."""
    digest = hashlib.sha256()
    files = sorted(file for part in CODE for file in (ROOT / part).rglob("*.py"))
    for file in files:
        name = str(file.relative_to(ROOT))
        if not name.startswith(OWN):
            digest.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def missing() -> list[str]:
    """Packages without which next to nothing runs."""
    return [name for name in NEEDED if find_spec(name) is None]


def unpinned() -> dict[str, str]:
    """Packages whose version is another than that of docker/versions.json, as `theirs (pinned: ours)`."""
    pins = json.loads((ROOT / "docker" / "versions.json").read_text(encoding="utf-8"))["python"]
    found: dict[str, str] = {}
    for name, pin in pins.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = f"absent (pinned: {pin['version']})"
            continue
        if version.partition("+")[0] != pin["version"]:
            found[name] = f"{version} (pinned: {pin['version']})"
    return found


def driver() -> str | None:
    """The driver's version by NVML, None where it does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
    return version.decode() if isinstance(version, bytes) else version


def gathered() -> dict[str, Any]:
    """Everything; `gpu` is None where torch sees none."""
    absent = missing()
    if absent:
        return {"missing": absent}
    import torch

    machine = described("auto")
    memory_bytes = torch.cuda.get_device_properties(0).total_memory if machine["kind"] == "cuda" else None
    return {
        "missing": [],
        "gpu": machine["device"] if machine["kind"] == "cuda" else None,
        "gpus": torch.cuda.device_count(),
        "memory_bytes": memory_bytes,
        "driver": driver(),
        "cuda": machine["cuda"],
        "python": machine["python"],
        "packages": machine["stack"],
        "unpinned": unpinned(),
        "commit": machine["commit"],
        "code": code(),
    }


def identity(stack: dict[str, Any], *, is_tiny: bool) -> str:
    """What two results have in common that may stand side by side: 8 digits."""
    parts = {name: stack[name] for name in ("gpu", "gpus", "driver", "cuda", "python", "packages", "code")}
    text = json.dumps({**parts, "is_tiny": is_tiny}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def ask() -> dict[str, Any]:
    """`gathered` by a process of its own."""
    command = [sys.executable, "-m", "bench.gpu.stack"]
    told = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(told.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(gathered()))
