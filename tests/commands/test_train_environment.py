"""What `loradock train` tells torch before it is imported, and what it leaves to the environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from loradock.commands.train import QUIET, set_environment
from loradock.machine.library_variables import ALLOCATOR
set_environment(QUIET)
assert "torch" not in sys.modules
print(os.environ.get(*ALLOCATOR, None), os.environ.get("PYTORCH_ALLOC_CONF"))
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "expandable_segments:True None"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64 None"),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, "None expandable_segments:False"),
    ],
)
def test_segments_grow_unless_the_environment_says_how_memory_is_taken(given: dict[str, str], expected: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=clean | given, stdout=subprocess.PIPE, text=True, check=True
    )
    assert told.stdout.strip() == expected
