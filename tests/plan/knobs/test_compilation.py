"""torch.compile: off unless asked for, and refused with a reason and a setting where it is known to go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from facts.recorded import config, data, decision, machine, planned

from loradock.config.load import load
from loradock.errors import ConfigError

EVEN = data(mean=512, longest=512, limit=512)
PLAIN = {"packing": False, "global_batch": 4, "micro_batch": 4}


def asked(mode: str, **sections: Any) -> Any:
    train = {"compile": mode, **sections.pop("train", {})}
    return config(engine="peft", train=train, **sections)


def test_nothing_is_compiled_unless_asked_for() -> None:
    found = decision(planned(), "compile")
    assert found.value == "off"
    assert "4-bit" in found.why


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_a_mode_that_is_asked_for_is_taken_by_the_reference_engine_of_its_own_accord(mode: str) -> None:
    plan = planned(facts=machine("h200"), config=config(train={"compile": mode}))
    assert (plan.engine.value, plan.compile.value, decision(plan, "compile").why) == (
        "peft",
        mode,
        "set in the configuration",
    )
    assert "nothing to compile" in decision(plan, "engine").why


def test_the_fast_engine_and_the_compiler_exclude_one_another() -> None:
    with pytest.raises(ConfigError, match="nothing to compile"):
        planned(facts=machine("h200"), config=config(engine="fast", train={"compile": "default"}))


def test_cuda_graphs_are_recorded_where_every_step_is_one_pass_over_rows_of_one_length() -> None:
    plan = planned(facts=machine("h200"), data=EVEN, config=asked("reduce-overhead", train=PLAIN))
    assert plan.compile.value == "reduce-overhead"


@pytest.mark.parametrize(
    ("gpu", "settings", "rows", "said"),
    [
        ("h200", asked("default", lora={"dora": True}), EVEN, "DoRA"),
        ("h200", asked("default", model={"quantization": "int8"}), EVEN, "int8"),
        ("h200", asked("default", deterministic=True), EVEN, "by their time"),
        (None, asked("max-autotune"), EVEN, "reruns on a CPU"),
        (None, asked("reduce-overhead"), EVEN, "there is no GPU"),
        ("h200", asked("reduce-overhead", train={"packing": True}), EVEN, "packs differ"),
        ("h200", asked("reduce-overhead", train=PLAIN), data(), "166 tokens on average of 1024"),
        ("h200", asked("reduce-overhead", train=PLAIN | {"micro_batch": 2}), EVEN, "the next pass"),
        ("h200", asked("reduce-overhead", train=PLAIN | {"global_batch": 3, "micro_batch": 2}), EVEN, "the next pass"),
    ],
)
def test_what_would_go_wrong_is_refused_with_a_setting_to_type(
    gpu: str | None, settings: Any, rows: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        planned(facts=machine(gpu), config=settings, data=rows)
    assert refused.value.exit_code == 78
    assert "--set train.compile=" in (refused.value.hint or "")


def test_deterministic_runs_on_a_cpu_may_be_compiled() -> None:
    assert planned(facts=machine(), config=asked("default", deterministic=True)).compile.value == "default"


def test_a_bare_off_in_yaml_is_off(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("train:\n  compile: off\n", encoding="utf-8")
    assert load(file, needs_inputs=False).config.train.compile == "off"
    assert load(None, overrides=["train.compile=default"], needs_inputs=False).config.train.compile == "default"


@pytest.mark.parametrize("old", ["true", "false"])
def test_a_truth_value_of_an_older_configuration_is_refused_with_the_words_to_write(tmp_path: Path, old: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, overrides=[f"train.compile={old}"], needs_inputs=False)
    (problem,) = refused.value.problems
    assert f"must be off, default, reduce-overhead or max-autotune, not {old}" in problem.what
    assert problem.hint == "write one of them: off, default, reduce-overhead, max-autotune"
