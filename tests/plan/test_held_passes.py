"""How many passes of a contrastive step stay: decided by memory, told with the reason, counted in what is expected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny import make_llama

from loradock.commands.plan import described_facts
from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.data.samples.pairs import described
from loradock.errors import ConfigError, ModelError
from loradock.facts import ModelFacts
from loradock.model import shape
from loradock.model.description import describe
from loradock.plan import planner
from loradock.plan.audit import audit
from loradock.plan.plan import Plan

pytestmark = pytest.mark.thin(2)

COUNTS = ("train_rows", "samples_per_epoch", "tokens", "epoch_tokens")
"""Of the data: what a third of the documents has a third of."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough that the passes of a large step do not fit on a GPU."""
    folder = tmp_path_factory.mktemp("wide")
    return make_llama(folder, hidden_size=512, intermediate_size=8192, num_hidden_layers=8, num_attention_heads=8)


def config(base: Path, *settings: str) -> RunConfig:
    asked = ("objective=embedding", *settings)
    return load(None, overrides=list(asked), shortcuts={"--model": str(base), "--data": ["pairs.jsonl"]}).config


def facts(found: RunConfig) -> ModelFacts:
    return shape.inspect(describe(found.model), found)


def plan(base: Path, *settings: str) -> Plan:
    found = config(base, *settings)
    data = described(found, 100_000, mean_tokens=200, longest_tokens=400, learned_share=0.5)
    return planner.make(found, facts=planner.machine_with("a10"), model=facts(found), data=data)


def test_all_passes_of_a_small_step_stay(base: Path) -> None:
    made = plan(base, "embedding.global_batch=16")
    assert made.held_passes.value == "all"
    assert made.held_passes.why.startswith("direct: all ")
    assert made.memory_bytes["total"] <= 0.9 * 24 * 2**30


def test_of_a_large_step_as_many_stay_as_fit(base: Path) -> None:
    made = plan(base, "embedding.global_batch=4096")
    assert isinstance(made.held_passes.value, int)
    assert "the others run forward twice" in made.held_passes.why
    assert made.memory_bytes["total"] <= 0.9 * 24 * 2**30
    assert made.memory_bytes["vectors and scores"] > 0


def test_pairs_that_fill_no_step_are_planned_for_as_the_step_that_they_make(base: Path) -> None:
    found = config(base, "embedding.global_batch=4096")
    data = described(found, 10, mean_tokens=200, longest_tokens=400, learned_share=0.5)
    made = planner.make(found, facts=planner.machine_with("a10"), model=facts(found), data=data)
    assert made.held_passes.value == "all"
    assert made.accumulation.why.startswith("30 samples a step are about 6,000 tokens")
    assert made.steps.why == "1 epoch(s) of 10 pairs, 10 a step"


def test_negatives_that_are_missing_take_no_time(base: Path) -> None:
    found = config(base, "embedding.global_batch=64", "embedding.negatives=7")
    data = described(found, 6400, mean_tokens=200, longest_tokens=400, learned_share=0.5)
    fewer = replace(data, **{name: getattr(data, name) // 3 for name in COUNTS})
    made = audit(found, planner.machine_with("a10"), facts(found), fewer)
    assert made.finish.tokens == fewer.tokens


def test_no_more_is_planned_with_than_the_share_of_the_memory_that_is_allowed(base: Path) -> None:
    whole, half = (plan(base, "embedding.global_batch=4096", *more) for more in ((), ("train.memory_fraction=0.5",)))
    assert half.memory_bytes["total"] <= 0.5 * 0.9 * 24 * 2**30 < whole.memory_bytes["total"]
    assert half.memory_bytes["passes that stay"] < whole.memory_bytes["passes that stay"]


def test_what_is_asked_for_is_done(base: Path) -> None:
    assert plan(base, "embedding.passes=cached").held_passes.value == 0
    assert plan(base, "embedding.passes=direct").held_passes.value == "all"


def test_passes_that_run_twice_are_expected_to_take_a_third_longer(base: Path) -> None:
    seconds = []
    for passes in ("direct", "cached"):
        found = config(base, "embedding.global_batch=64", f"embedding.passes={passes}")
        data = described(found, 6400, mean_tokens=200, longest_tokens=400, learned_share=0.5)
        made = audit(found, planner.machine_with("a10"), facts(found), data)
        seconds.append(made.finish.seconds)
    assert 1.2 < seconds[1] / seconds[0] < 1.4


def test_steps_are_counted_in_pairs(base: Path) -> None:
    assert plan(base, "embedding.global_batch=1000").steps.value == 100


def test_texts_beyond_positions_or_a_window_are_refused(base: Path, tmp_path: Path) -> None:
    found = config(base, "embedding.passage_length=600")
    with pytest.raises(ModelError, match=r"embedding.passage_length is 600, and .* has 512 positions"):
        facts(found)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("train.parallel=fsdp",), "objective embedding is not trained on a model that is cut among GPUs"),
        (("embedding.in_batch=false", "embedding.negatives=0"), "a query is compared with its positive alone"),
        (("embedding.temperature=0",), "embedding.temperature"),
    ],
)
def test_what_cannot_be_trained_is_refused(base: Path, settings: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(base, *settings)
    assert words in str(error.value)


@pytest.mark.parametrize(("loss", "passes"), [("cpo", 0), ("dpo", 1), ("{dpo: 1, ipo: 1}", 1), ("kto", 3)])
def test_passes_of_a_reference_are_counted_in_the_time(loss: str, passes: int, base: Path) -> None:
    """A forward pass is a third of a step's passes; kto runs answers under the reference, and mismatched ones twice."""
    seconds: list[float] = []
    for settings in (("objective=supervised",), ("objective=preference", f"preference.loss={loss}")):
        overrides = [*settings, "train.max_steps=50"]
        found = load(None, overrides=overrides, shortcuts={"--model": str(base), "--data": ["rows.jsonl"]}).config
        data = replace(described_facts(found, 1600, 200, 400, length=512), together=1)
        seconds.append(audit(found, planner.machine_with("a10"), facts(found), data).finish.seconds / data.tokens)
    assert seconds[1] / seconds[0] == pytest.approx(1 + passes / 3, rel=0.05)
