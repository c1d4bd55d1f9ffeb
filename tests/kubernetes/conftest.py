"""The option that writes the page of rules."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-manifest-rules", action="store_true", help="write docs/manifest-check.md from the rules")
