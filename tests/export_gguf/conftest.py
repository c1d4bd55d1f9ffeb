"""llama.cpp, where an environment has it."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def python() -> str:
    """The Python that has llama-cpp-python."""
    found = os.environ.get("LORADOCK_LLAMA_CPP")
    if not found:
        pytest.skip("no llama-cpp-python here: LORADOCK_LLAMA_CPP names the Python that has it")
    return found
