"""The plan as a whole: what holds for any question, asked at random with a seed."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
from facts.recorded import STACK, config, data, gpus, machine, models, planned

from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, OutOfMemory
from loradock.facts import DataFacts, Facts, ModelFacts
from loradock.plan import planner
from loradock.plan.context import MEMORY_SHARE
from loradock.plan.plan import KNOBS

QUESTIONS = 400


def random_question(seed: int) -> tuple[RunConfig, Facts, ModelFacts, DataFacts]:
    """Any machine, model, data set and a few settings."""
    draw = random.Random(seed)
    gpu = draw.choice([None, *gpus()])
    world = draw.choice([1, 1, 2, 8])
    limit = draw.choice([64, 512, 1024, 2048, 4096])
    longest = draw.randint(2, limit)
    facts = machine(gpu, flash=draw.random() < 0.5, cpus=draw.randint(1, 64), world_size=world)
    asked = config(
        lora={"rank": draw.choice([4, 16, 64]), "dropout": draw.choice([0.0, 0.05])},
        train={"global_batch": max(world, draw.choice([1, 7, 16, 128])), "epochs": draw.choice([0.1, 1, 3])},
    )
    rows = data(
        rows=draw.choice([1, 50, 5_000, 200_000]),
        mean=draw.randint(1, longest),
        longest=longest,
        limit=limit,
        held_out=draw.choice([0, 10, 5_000]),
    )
    return asked, facts, draw.choice(list(models().values())), rows


@pytest.mark.thin(3)
def test_any_question_gets_a_plan_that_fits_or_is_refused_for_memory() -> None:
    made = refused = 0
    for seed in range(QUESTIONS):
        asked, facts, model, rows = random_question(seed)
        try:
            plan = planner.make(asked, facts=facts, model=model, data=rows)
        except OutOfMemory:
            refused += 1
            continue
        made += 1
        memory = facts.gpu.memory_bytes if facts.has_gpu else facts.memory_bytes // facts.world_size
        fits = plan.memory_bytes["total"] <= memory * MEMORY_SHARE
        assert fits or (not facts.has_gpu and plan.micro_batch.value == 1), seed
        assert 1 <= plan.micro_batch.value <= asked.train.global_batch, seed
        assert plan.steps.value >= 1, seed
    assert made > QUESTIONS / 2
    assert refused > 10


def test_more_processes_than_samples_of_a_step_are_refused_with_both_remedies() -> None:
    step = config(train={"global_batch": 8})
    assert planned(facts=planner.machine_with("h200", count=4, nodes=2), config=step).accumulation.value == 1
    with pytest.raises(
        ConfigError, match=r"16 processes .* train.global_batch is 8: 8 of them would get no sample"
    ) as refused:
        planned(facts=planner.machine_with("h200", count=8, nodes=2), config=step)
    assert refused.value.exit_code == 78
    assert refused.value.hint == "8 GPUs at most, or --set train.global_batch=16, which changes what is trained"


def test_every_decision_has_a_name_of_its_own_and_a_reason() -> None:
    for seed in range(0, QUESTIONS, 20):
        asked, facts, model, rows = random_question(seed)
        try:
            plan = planner.make(asked, facts=facts, model=model, data=rows)
        except OutOfMemory:
            continue
        names = [decision.name for decision in plan.decisions]
        assert len(set(names)) == len(names) == len(KNOBS)
        assert all(len(decision.why) > 8 for decision in plan.decisions), plan.decisions


def test_the_same_question_gets_the_same_plan() -> None:
    for seed in range(0, QUESTIONS, 40):
        asked, facts, model, rows = random_question(seed)
        try:
            first = planner.make(asked, facts=facts, model=model, data=rows)
        except OutOfMemory:
            continue
        assert first == planner.make(asked, facts=facts, model=model, data=rows)


def test_a_gpu_with_more_memory_never_gets_a_smaller_micro_batch_or_more_checkpointing() -> None:
    rows = data(mean=1800, longest=2048, limit=2048)
    for model in models().values():
        found = []
        for gpu in ("l4", "a100-40", "a100-80", "h200", "b200"):
            try:
                plan = planned(facts=machine(gpu), model=model, data=rows)
            except OutOfMemory:
                continue
            found.append((not plan.checkpointing.value, plan.micro_batch.value))
        assert [free for free, _ in found] == sorted(free for free, _ in found), model.name
        kept = [size for free, size in found if not free]
        assert kept == sorted(kept), model.name


def test_the_parts_of_the_expected_memory_add_up_to_the_total() -> None:
    parts = dict(planned().memory_bytes)
    total = parts.pop("total")
    assert sum(parts.values()) == total
    assert all(size >= 0 for size in parts.values())


def test_a_plan_becomes_json_without_the_list_of_layers() -> None:
    content = json.loads(json.dumps(planned().as_dict()))
    assert content["model"]["linears"] == content["model"]["targets"] == 7 * 32
    assert [decision["name"] for decision in content["decisions"]][:2] == ["device", "compute_dtype"]
    assert content["data"]["train_rows"] == 10_000


def test_planning_imports_no_heavy_package() -> None:
    script = (
        "import sys, loradock.plan.plan, loradock.plan.memory, loradock.plan.knobs\n"
        f"heavy = {sorted([*STACK, 'numpy', 'subprocess', 'pynvml'])!r}\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
