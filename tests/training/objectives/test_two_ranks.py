"""The reference's values by two processes, each with a part of every step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faults.forking import Forking

from objectives.reference import CASES, GENERATIVE, NEEDS_REFERENCE, joint_steps, recorded, relative

pytestmark = NEEDS_REFERENCE
BOUND = 1e-5
HERE = Path(__file__).parents[1]
CODE = """
import os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from objectives.two_ranks import main
main(Path.cwd(), {engine!r})
os._exit(0)
"""


@pytest.fixture(scope="module", params=["fast", pytest.param("peft", marks=pytest.mark.full)])
def found(request: pytest.FixtureRequest, forking: Forking, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the two wrote by an engine."""
    folder = tmp_path_factory.mktemp("ranks")
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    code = CODE.format(here=str(HERE), engine=request.param)
    ranks = [forking.start(folder, code=code, RANK=str(each), LOCAL_RANK=str(each), **sizes) for each in (0, 1)]
    assert [each.finish() for each in ranks] == [0, 0], "".join(each.text() for each in ranks)
    return json.loads((folder / "found.json").read_text("utf-8"))


@pytest.mark.parametrize("case", [*CASES, *GENERATIVE])
def test_two_processes_give_the_references_loss_and_gradient(found: dict[str, Any], case: str) -> None:
    wanted = recorded()[case]
    loss = wanted["loss_emb" if case in CASES else "loss_gen"]
    assert relative(found["cases"][case], [loss, wanted["grad_norm"]]) < BOUND


def test_five_joint_steps_of_two_processes_are_the_references(found: dict[str, Any]) -> None:
    for step, wanted in zip(found["steps"], joint_steps(), strict=True):
        assert relative(step, [wanted["loss_emb"], wanted["loss_gen"], wanted["grad_norm"]]) < BOUND


def test_passes_that_run_twice_have_the_bits_of_those_that_stay_on_each_rank(found: dict[str, Any]) -> None:
    assert found["same bits"]
