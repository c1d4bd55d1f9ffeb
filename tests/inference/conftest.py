"""A tiny model that a real run trained, and what it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest
from whole_runs import train

from loradock.use.inference.opener import Opened, open_model


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> Path:
    """The directory of a finished NF4 run of a few steps."""
    folder = tmp_path_factory.mktemp("trained")
    settings = ("train.max_steps=6", "train.learning_rate=1e-2", "lora.rank=4", "train.global_batch=8")
    return train(folder / "run", *settings, model=llama, data=rows).directory


@pytest.fixture(scope="session")
def opened(trained: Path) -> Opened:
    """The run's model."""
    return open_model(trained)
