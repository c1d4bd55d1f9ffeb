"""What a library says of an op that is never used is not shown: it would be taken for the cause of what follows."""

from __future__ import annotations

import logging

import pytest
from click.testing import CliRunner

from loradock.cli import cli

LOG = logging.getLogger("bitsandbytes.backends.cpu.ops")


def test_only_the_line_on_the_unused_op_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    CliRunner().invoke(cli, ["train", "--resume", "--fresh"])
    LOG.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s. Please", "No module named 'kernels'")
    LOG.warning("Something else failed")
    assert caplog.messages == ["Something else failed"]
