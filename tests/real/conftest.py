"""Real models and tokenizers, fetched once by scripts/real-model: without a network, these tests are skipped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "real_models.py"
UNREACHABLE = 69

Real = Callable[[str], Path]


@pytest.fixture(scope="session")
def real() -> Real:
    """The directory of a real model or tokenizer by its name. Where the first cannot be fetched, none is asked for."""
    found: dict[str, Path] = {}
    reasons: list[str] = []

    def directory(name: str) -> Path:
        if name not in found and not reasons:
            done = subprocess.run([sys.executable, SCRIPT, name], capture_output=True, text=True, timeout=600)
            if done.returncode == UNREACHABLE:
                reasons.append(done.stderr.partition("\n")[0].removeprefix("error: "))
            else:
                assert done.returncode == 0, done.stderr
                found[name] = Path(done.stdout.strip())
        if name not in found:
            pytest.skip(f"no real model without a network: {reasons[0]}")
        return found[name]

    return directory
