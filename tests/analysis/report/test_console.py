"""What `train` prints: the plan with every reason, metric lines, and how the run ended."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from analysis.report.content import content, evaluations, metrics, plan
from rich.console import Console

from loradock.analysis.report import console
from loradock.text.amounts import size_text
from loradock.training.events import EvalResult, StepResult
from loradock.training.observers.model_card import data_rows

STEP = StepResult(
    step=10,
    steps=10,
    epoch=0.25,
    loss=1.23456,
    learning_rate=2e-4,
    grad_norm=0.5,
    tokens=4096,
    supervised_tokens=2048,
    padding_share=0.1,
    tokens_per_second=12345.6,
    samples_per_second=3.2,
    seconds=0.3,
    steps_per_second=0.4,
    epoch_seconds=90.0,
    memory_bytes=3 << 30,
    phases={"data": 0.1, "passes": 0.2},
)


def drawn(table: Any, *, columns: int = 200) -> str:
    screen = Console(width=columns, no_color=True)
    with screen.capture() as captured:
        screen.print(table)
    return captured.get()


def test_the_plan_shows_every_decision_with_its_reason() -> None:
    text = drawn(console.plan_table(plan()))
    for decision in (each for each in plan().decisions if each.is_shown):
        assert decision.name in text
        assert decision.why in text


def test_few_columns_put_the_reasons_of_the_plan_below_its_values() -> None:
    text = drawn(console.plan_table(plan()), columns=80)
    for decision in (each for each in plan().decisions if each.is_shown):
        assert f"{decision.name} " in text
        assert decision.why[:35] in text
    assert max(map(len, text.splitlines())) <= 80


def test_brackets_in_a_decision_are_shown() -> None:
    made = plan().with_value("attention", "[dim]odd", why="because of [red]")
    text = drawn(console.plan_table(made))
    assert "[dim]odd" in text
    assert "because of [red]" in text


def test_the_memory_table_shows_every_component_and_the_total() -> None:
    text = drawn(console.memory_table(plan()))
    for part, size in plan().memory_bytes.items():
        assert part in text
        assert size_text(size) in text


def test_model_and_data_are_said_in_sentences() -> None:
    lines = console.plan_lines(plan())
    assert "MistralForCausalLM, 7,241,732,096 weights, 32 layers" in lines[0]
    assert "adapter on 224 of 224 linear layers" in lines[0]
    assert "10,000 rows, 1,660,000 tokens" in lines[1]
    assert "100 rows held out" in lines[1]
    assert len(lines) == 2


@pytest.mark.parametrize(("changes", "name"), [({}, "rows"), ({"pairs": 5_000}, "texts"), ({"together": 2}, "answers")])
def test_what_is_counted_has_its_name_on_the_screen_and_in_the_model_card(changes: dict[str, int], name: str) -> None:
    """The file of an embedding's 5,000 rows holds 10,000 texts, that of preferences two answers a row."""
    known = plan()
    data = replace(known.data, **changes)
    assert f"10,000 {name}, " in (line := console.plan_lines(replace(known, data=data))[1])
    assert f"100 {name} held out" in line
    record = {"plan": {"data": asdict(data)}, "data": {"sources": []}, "config": {"data": {"loss": "auto"}}}
    assert data_rows(record)[0] == (name, "10000 trained, 100 held out")


def test_rows_that_were_cut_or_dropped_are_never_silent() -> None:
    known = plan()
    cut = replace(known, data=replace(known.data, truncated_rows=7, dropped_rows=2, lost_tokens=1234))
    assert "7 cut, 2 dropped; 1,234 tokens" in console.plan_lines(cut)[2]


def test_a_metric_line_shows_memory_only_where_a_gpu_has_some() -> None:
    line = console.metric_line(STEP, 40)
    assert (
        line == "step 10/40  loss 1.2346  lr 2.00e-04  grad 0.500  12,346 tokens/s  3.2 samples/s  75 s left  3.00 GiB"
    )
    assert "GiB" not in console.metric_line(replace(STEP, memory_bytes=0), 40)


def test_an_evaluation_line_has_loss_and_perplexity() -> None:
    result = EvalResult(step=20, loss=1.5, metrics={"perplexity": 4.4817}, losses={}, supervised_tokens=9, seconds=1.0)
    assert console.evaluation_line(result) == "step 20  evaluation loss 1.5000  perplexity 4.482"
    named = replace(result, losses={"chat": 1.25, "code": 1.75})
    assert console.evaluation_line(named).endswith("perplexity 4.482  (chat 1.2500, code 1.7500)")
    assert named.line() == {**result.line(), "loss_chat": 1.25, "loss_code": 1.75}


def test_the_summary_says_how_it_ended_and_what_was_exported(tmp_path: Path) -> None:
    lines = console.summary(content(tmp_path), metrics(), evaluations())
    assert lines == [
        "finished: 40 steps (last step) in 20 s of training",
        "loss 2.9500 -> 1.0000, 2,000 tokens/s",
        "evaluation loss 1.2500, perplexity 3.490",
        "exported: the best checkpoint, step 30",
    ]


def test_the_summary_says_the_whole_time_and_that_of_training(tmp_path: Path) -> None:
    known = content(tmp_path)
    known["timings_seconds"] |= {"total": 137.2, "env-check": 96.6}
    whole = "finished: 40 steps (last step) in 137 s, 20 s of them training"
    assert console.summary(known, metrics(), evaluations())[0] == whole
    known["resumed_from"] = "checkpoint-30"
    assert console.summary(known, metrics(), evaluations())[0] == f"{whole}, since checkpoint-30"


def test_the_summary_of_a_run_without_lines_is_short(tmp_path: Path) -> None:
    known = content(tmp_path)
    known["outcome"]["best_step"] = None
    assert console.summary(known, [], []) == ["finished: 40 steps (last step) in 20 s of training"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "on"),
        (False, "off"),
        (1, "1"),
        ("sdpa", "sdpa"),
        ({"workers": 2, "pin_memory": True, "prefetch_factor": None}, "workers 2, pin_memory on"),
    ],
)
def test_a_value_is_shown_as_a_person_reads_it(value: Any, text: str) -> None:
    assert console.shown(value) == text
