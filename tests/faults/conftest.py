"""Promise tests: `trial` notes what one found; --full writes it to bench/results/reliability/."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from faults.campaign import records, table


@dataclass
class Trial:
    """Call it once a trial, or once with `count` for a batch of them; docs/reliability.md counts the lines."""

    test: str
    is_writing: bool
    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self, promise: str, ok: bool, *, count: int = 1, engine: str | None = None, **facts: Any) -> None:
        """Note a trial of `promise` ("P3") with facts (JSON, units in their names); a trial not ok fails the test.

        `engine` is the one that was tried, where the promise rests on code of its own.
        """
        number = self.numbers[promise] = self.numbers.get(promise, 0) + 1
        if self.is_writing:
            result = "ok" if ok else "failed"
            trial = f"{self.test}#{number}"
            line = {"promise": promise, "subject": "loradock", "trial": trial, "count": count, "result": result}
            line |= {"engine": engine} if engine else {}
            records.append({**line, "figures": facts})
        assert ok, f"{promise}: {facts}"


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Trial:
    file = Path(str(request.node.path)).relative_to(records.ROOT)
    return Trial(test=f"{file}::{request.node.name}", is_writing=bool(request.config.getoption("--full")))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--full"):
        records.pack()
        table.PAGE.write_text(table.text(), encoding="utf-8")
