"""What a diagnosis keeps: taken over by the same one, refused to another one with all that differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from analysis.diagnose.made import measured
from tiny import make_llama, write_rows

from loradock.analysis.diagnose import diagnose
from loradock.analysis.diagnose.results import FILE, Results
from loradock.config.load import load
from loradock.errors import UsageError
from loradock.machine import Host, probe

IDENTITY = {"train.seed": "0", "--steps": "20", "version of torch": '"2.10.0"'}


def test_outcomes_are_taken_over_by_the_same_diagnosis(tmp_path: Path) -> None:
    Results(tmp_path, identity=IDENTITY).put(0, ("lora.rank=8",), measured())
    assert Results(tmp_path, identity=dict(reversed(IDENTITY.items()))).get(0, ("lora.rank=8",)) == measured()


def test_another_diagnosis_is_refused_with_each_thing_that_differs(tmp_path: Path) -> None:
    Results(tmp_path, identity=IDENTITY)
    with pytest.raises(UsageError) as refused:
        Results(tmp_path, identity={"train.seed": "1", "--steps": "20", "cpus": "2"})
    told = [problem.what for problem in refused.value.problems]
    assert told == ["cpus was absent, now 2", "train.seed was 0, now 1", 'version of torch was "2.10.0", now absent']


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"diagnosis": "0123456789abcdef"}) + "\n")
    with pytest.raises(UsageError) as refused:
        Results(tmp_path, identity=IDENTITY)
    assert "another version" in refused.value.problems[0].what


def test_the_identity_names_configuration_data_and_machine_but_not_the_output(tmp_path: Path) -> None:
    model, rows, facts = make_llama(tmp_path / "base"), write_rows(tmp_path / "rows.jsonl"), probe.gather(Host())

    def identity(*overrides: str) -> dict[str, str]:
        loaded = load(None, overrides=overrides, shortcuts={"--model": str(model), "--data": [str(rows)]})
        return diagnose.identity(loaded, facts=facts, steps=20, warmup_steps=3)

    before = identity()
    assert identity("output=elsewhere") == before
    changed = identity("train.max_steps=80")
    assert {name for name in before if changed[name] != before[name]} == {"train.max_steps"}
    write_rows(rows, rows=50)
    assert {name for name in before if identity()[name] != before[name]} == {f"content of {rows}"}
