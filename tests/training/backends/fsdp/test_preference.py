"""Preferences on a model that two processes share by FSDP2: the reference, idle passes, KTO and reward models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny import copy_tree
from training.backends.fsdp.conftest import Group, Start

STEPS = 5
"""An epoch has four: in the last one the reference is known."""
FEW = (
    f"train.max_steps={STEPS}",
    "evaluation.every=3",
    "data.validation=5",
    "train.global_batch=5",
    "train.micro_batch=2",
)
LEARNING = (*FEW, "objective=preference", "lora.dropout=0", "train.learning_rate=1e-2")
REPORTED = ("loss", "preference_accuracy", "reward_margin", "chosen_log_probability")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("judged") / "judged.jsonl"
    lines = [
        {"prompt": f"{number} stones", "completion": "lamp " * (1 + number % 9), "label": number % 3 == 0}
        for number in range(24)
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, start: Start, llama: Path) -> Path:
    """An adapter that others begin with."""
    group = start(tmp_path_factory.mktemp("begun"), "train.max_steps=2", "engine=fast", model=llama, count=1)
    assert group.finish() == [0], group.text()
    return group.folder / "out" / "adapter"


def lines_of(group: Group, kind: str) -> list[dict[str, float]]:
    lines = map(json.loads, (group.folder / "out" / "metrics.jsonl").read_text("utf-8").splitlines())
    return [{name: line[name] for name in REPORTED if name in line} for line in lines if line["kind"] == kind]


def check_equal(two: Group, one: Group, *, steps: int = STEPS) -> None:
    assert two.finish() == [0, 0], two.text()
    assert one.finish() == [0], one.text()
    for kind, count in (("train", steps), ("eval", 1 + steps // 4)):
        single, double = lines_of(one, kind), lines_of(two, kind)
        assert len(single) == len(double) == count
        for mine, theirs in zip(double, single, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    first, second = one.adapter(), two.adapter()
    assert all(torch.allclose(second[name], tensor, rtol=1e-2, atol=1e-4) for name, tensor in first.items())


def check_continued(two: Group, *settings: str, start: Start, model: Path, data: Path, after: int = 1) -> None:
    """From the checkpoint of a step on, the bits are the same."""
    copy = copy_tree(two.folder, two.folder.with_name("again"))
    for checkpoint in (copy / "out" / "checkpoints").glob(f"checkpoint-[{after + 1}-9]"):
        shutil.rmtree(checkpoint)
    shutil.rmtree(copy / "out" / "adapter")
    again = start(copy, *settings, "train.parallel=fsdp", model=model, data=data)
    assert again.finish() == [0, 0], again.text()
    assert again.losses() == two.losses()
    assert all(torch.equal(again.adapter()[name], tensor) for name, tensor in two.adapter().items())


@pytest.mark.thin(4)
@pytest.mark.parametrize("is_continued", [True, False])
def test_pairs_are_held_against_what_the_run_began_with(
    is_continued: bool, tmp_path: Path, start: Start, llama: Path, answers: Path, begun: Path
) -> None:
    settings = (
        *LEARNING,
        *("checkpoints.every=1", "checkpoints.keep=9"),
        f"train.packing={str(is_continued).lower()}",
        *([f"lora.adapter={begun}", "lora.init=default"] if is_continued else []),
    )
    one = start(tmp_path / "one", *settings, "engine=peft", model=llama, data=answers, count=1)
    two = start(tmp_path / "two", *settings, "train.parallel=fsdp", model=llama, data=answers)
    check_equal(two, one)
    assert one.losses()[0] == pytest.approx(0.6931, abs=1e-4), "nothing is gained before the first step"
    assert abs(one.losses()[2] - 0.6931) > 0.01
    if is_continued:
        check_continued(two, *settings, start=start, model=llama, data=answers)


@pytest.mark.thin(4)
def test_judged_answers_share_one_divergence(tmp_path: Path, start: Start, llama: Path, judged: Path) -> None:
    settings = (*LEARNING, "preference.loss=kto")
    one = start(tmp_path / "one", *settings, "engine=peft", model=llama, data=judged, count=1)
    two = start(tmp_path / "two", *settings, "train.parallel=fsdp", model=llama, data=judged)
    check_equal(two, one)


@pytest.mark.thin(4)
def test_a_reward_model_is_that_of_one_process_and_is_continued_to_the_bit(
    tmp_path: Path, start: Start, llama: Path, answers: Path
) -> None:
    """Its head has one row of weights, of which the second process holds none."""
    settings = (*LEARNING, "objective=reward", "train.max_steps=3", "checkpoints.every=1", "reward.center=0.01")
    one = start(tmp_path / "one", *settings, "engine=peft", model=llama, data=answers, count=1)
    two = start(tmp_path / "two", *settings, "train.parallel=fsdp", model=llama, data=answers)
    check_equal(two, one, steps=3)
    assert "base_model.model.score.weight" in two.adapter()
    check_continued(two, *settings, start=start, model=llama, data=answers)
