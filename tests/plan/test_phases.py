"""In which order what the audit finds is done, how long that takes a person, and how hard a fault of it is to find."""

from __future__ import annotations

import pytest
from facts.recorded import config, data, models

from loradock.analysis.report.audit import as_dict, finding_parts, phase_lines
from loradock.plan import planner
from loradock.plan.audit import Audit, audit
from loradock.plan.trial import SHORT_RUN

pytestmark = pytest.mark.thin(1)

SLOW = {"engine": "peft", "train": {"global_batch": 64, "micro_batch": 2, "packing": False, "optimizer": "adamw"}}


def audited() -> Audit:
    return audit(config(**SLOW), planner.machine_with("a10"), models()["mistral-7b"], data())


def test_what_is_one_setting_and_safe_comes_first_and_every_finding_has_one_phase() -> None:
    found = audited()
    times = [each.when for each in found.phases]
    assert (times[0], times[-1]) == ("at once", "after a build")
    inside = [each.trial.name for phase in found.phases for each in phase.findings]
    assert sorted(inside) == sorted(each.trial.name for each in found.findings)
    for each in found.phases[0].findings:
        assert (each.risk, each.minutes, each.debugging) == (0, 1, "easy"), each.trial.name
    assert found.phases[0].minutes == len(found.phases[0].findings)
    for later in found.phases[1:]:
        assert all(each.minutes >= SHORT_RUN for each in later.findings)


def test_compiled_layers_are_hard_to_debug_and_what_touches_accuracy_is_not_easy() -> None:
    found = {each.trial.name: each for each in audited().findings}
    assert found["compile-default"].debugging == "hard"
    assert found["attention-flash"].debugging == "moderate"
    assert found["attention-flash"].trial.minutes >= 60
    assert all(each.debugging != "easy" for each in found.values() if each.trial.accuracy_risk != "none")


def test_the_screen_and_the_document_have_phases_minutes_and_debugging() -> None:
    found = audited()
    assert phase_lines(found)[0].startswith("1. at once, ")
    assert "h of work: attention-flash" in phase_lines(found)[-1]
    document = as_dict(found, price_per_hour=None)
    assert document["phases"][0]["minutes"] == found.phases[0].minutes
    assert {each["debugging"] for each in document["findings"]} >= {"easy", "hard"}
    assert list(finding_parts(found.findings))
