"""What the scenarios on the stand-in GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakegpu.commands import Gpus
from fakegpu.environment import CannotBeBuilt


@pytest.fixture(scope="package")
def gpu() -> Iterator[Gpus]:
    """One stand-in H100."""
    try:
        found = Gpus()
    except CannotBeBuilt as error:
        pytest.skip(str(error))
    yield found
    found.parent.end()
