"""The measured bound of another instruction set: where it holds, where none is known, and how the command ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loradock.analysis.reproduce.bound import CURVES, FACTOR, UP_TO, bound_at, is_within
from loradock.analysis.reproduce.comparison import Comparison
from loradock.analysis.reproduce.original import Original
from loradock.commands.reproduce import finish, verdict
from loradock.config.schema import RunConfig
from loradock.errors import NotReproduced, WithinBound


def judged(names: list[str], *differences: tuple[int, float], dtype: str = "float32", device: str = "cpu") -> Any:
    """What the command says and ends with where these differ, and each (step, relative difference) was measured."""
    decisions = [{"name": "compute_dtype", "value": dtype}, {"name": "device", "value": device}]
    record = {"plan": {"decisions": decisions}}
    original = Original(directory=Path("run"), record=record, config=RunConfig(), train=[], evaluations=[])
    at, largest = max(differences, key=lambda each: each[1])
    parted = min(step for step, _ in differences)
    found = Comparison(steps=50, evaluations=0, parted=parted, largest=largest, at=at, differences=tuple(differences))
    result: dict[str, Any] = {"differences": [{"name": name, "changes": "last bits"} for name in names]}
    with pytest.raises((NotReproduced, WithinBound)) as caught:
        finish(result, as_json=True, parted=verdict(original, found, result))
    return caught.value


def test_each_measured_curve_is_within_the_bound_and_grows() -> None:
    for curve in CURVES:
        assert list(curve.largest) == sorted(curve.largest)
        assert is_within(list(zip(UP_TO, curve.largest, strict=False)))
    assert [bound_at(step) for step in (1, 50)] == [
        pytest.approx(FACTOR * max(curve.largest[place] for curve in CURVES if place < len(curve.largest)))
        for place in (0, len(UP_TO) - 1)
    ]


def test_another_instruction_set_within_the_bound_ends_with_its_own_code(capsys: Any) -> None:
    error = judged(["instruction set", "ATEN_CPU_CAPABILITY"], (1, 2e-7), (12, 3e-4))
    assert isinstance(error, WithinBound)
    assert error.exit_code == 86
    assert error.what.startswith("within the bound of another instruction set (")
    assert "largest relative difference 3.0e-04 at step 12" in error.what
    assert '"is_within_bound": true' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "differences", "more", "told"),
    [
        (["instruction set"], [(1, 0.5)], {}, "beyond the bound of another instruction set"),
        (["instruction set"], [(51, 1e-9)], {}, "which is known to step 50"),
        (["instruction set"], [(1, 1e-7)], {"dtype": "bfloat16"}, "is known for products in float32 on a CPU alone"),
        (["GPUs", "driver"], [(1, 1e-7)], {"device": "cuda"}, "no bound is known where GPUs, driver differ"),
        (["instruction set", "torch"], [(1, 1e-7)], {}, "no bound is known where torch differ"),
        ([], [(1, 1e-7)], {}, "nothing was found to differ"),
    ],
)
def test_where_no_bound_holds_it_is_parted(names: list[str], differences: Any, more: Any, told: str) -> None:
    error = judged(names, *differences, **more)
    assert isinstance(error, NotReproduced)
    assert error.what.startswith("parted at step ")
    assert told in error.what
