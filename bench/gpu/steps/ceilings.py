"""What this GPU can do at best, and against its published figures."""

from __future__ import annotations

import json
from typing import Any

from bench.gpu.steps.base import Session, Step
from bench.gpu.steps.smoke import examined


def ceilings(session: Session) -> dict[str, Any]:
    """Products, copies and NF4 dequantisation, a minute."""
    sizes = ("--seconds", "2", "--tokens", "64", "--shrink", "16") if session.is_tiny else ("--seconds", "60")
    folder = session.folder("results")
    session.python("-m", "bench.floor", "--device", "cuda", *sizes, "--results", folder)
    (file,) = folder.glob("*.json")
    rates = json.loads(file.read_text(encoding="utf-8"))["rates"]
    spans = (
        f"copy {rates['copy_bytes']['median'] / 1e9:.4g} GB/s, NF4 {rates['dequantise_bytes']['median'] / 1e9:.4g} GB/s"
    )
    return {"summary": f"{rates['ceiling_flops'] / 1e12:.4g} TFLOP/s, {spans}", "rates": rates}


def published(session: Session) -> dict[str, Any]:
    """env-check's own speeds, as shares of the published figures."""
    chosen = "memory-bandwidth,disk" if session.is_tiny else "bench"
    return examined(session, "--level", "bench", "--only", chosen)


STEPS = (
    Step(name="ceilings", about="bench.floor --seconds 60", questions=(1,), work=ceilings, seconds=180),
    Step(name="published", about="env-check --level bench --only bench", questions=(14,), work=published, seconds=240),
)
