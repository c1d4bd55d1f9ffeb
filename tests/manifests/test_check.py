"""Each broken manifest is refused for its own reason, at its line; good ones are not, and nothing is ever raised."""

from __future__ import annotations

import pytest
from manifests.broken import BROKEN, GOOD, Broken

from loradock.manifests.check import problems


def told(text: str) -> list[tuple[str, int | None]]:
    return [(problem.what.partition(":")[0], problem.line) for problem in problems(text, file="job.yaml")]


def test_a_good_manifest_gives_nothing() -> None:
    assert [str(problem) for problem in problems(GOOD, file="good.yaml")] == []


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.why.replace(" ", "-"))
def test_a_broken_manifest_is_refused_by_its_rule_alone_at_its_line(case: Broken) -> None:
    found = problems(case.text, file="job.yaml")
    assert told(case.text) == [(case.rule, case.line)], "\n".join(map(str, found))
    assert case.says in str(found[0])
    assert found[0].hint
