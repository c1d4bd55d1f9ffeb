"""What the scenarios on the stand-in GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakegpu.commands import OneGpu
from fakegpu.environment import CannotBeBuilt


@pytest.fixture(scope="package")
def gpu() -> Iterator[OneGpu]:
    """One stand-in H100."""
    try:
        found = OneGpu()
    except CannotBeBuilt as error:
        pytest.skip(str(error))
    yield found
    found.parent.end()
