"""Runs that continue: what may change, what the best checkpoint needs, what a full disk at the end leaves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from whole_runs import Silent, adapter_bytes, losses, train

from loradock.errors import DiskFull, Diverged, NoCheckpoint
from loradock.files import atomic_io
from loradock.training.checkpoint.store import visible
from loradock.training.events import Event, StepDone

RUN = ("train.global_batch=8", "lora.rank=4", "train.max_steps=8", "checkpoints.every=2", "checkpoints.keep=2")


class Cut(Silent):
    """A view that ends the run after a step, as an error does that nobody foresaw."""

    def __init__(self, *, after: int) -> None:
        super().__init__()
        self.after = after

    def event(self, event: Event) -> None:
        super().event(event)
        if isinstance(event, StepDone) and event.step == self.after:
            raise KeyboardInterrupt


def cut_off(directory: Path, *settings: str, after: int, model: Path, data: Path) -> None:
    with pytest.raises(Exception, match="stopped by"):
        train(directory, *settings, model=model, data=data, view=Cut(after=after))


def record_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "run.json").read_text(encoding="utf-8"))


def rates(directory: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["step"]: line["learning_rate"] for line in lines if line["kind"] == "train"}


def test_an_allowed_learning_rate_is_the_one_that_trains_and_the_schedule_goes_on(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    run = tmp_path / "run"
    cut_off(run, *RUN, after=5, model=llama, data=rows)
    with pytest.raises(NoCheckpoint, match="started with other settings"):
        train(run, *RUN, "train.learning_rate=2e-3", model=llama, data=rows)
    assert record_of(run)["config"]["train"]["learning_rate"] == 2e-4, "a refused attempt leaves the record as it was"
    train(run, *RUN, "train.learning_rate=2e-3", model=llama, data=rows, allowed=("train.learning_rate",))
    train(tmp_path / "whole", *RUN, "train.learning_rate=2e-3", model=llama, data=rows)
    before, whole = rates(run), rates(tmp_path / "whole")
    assert [before[step] for step in (5, 6, 7, 8)] == [whole[step] for step in (5, 6, 7, 8)]
    assert before[4] == pytest.approx(whole[4] / 10)
    assert record_of(run)["allowed_changes"] == {"train.learning_rate": {"was": "0.0002", "now": "0.002"}}
    card = (run / "adapter" / "README.md").read_text(encoding="utf-8")
    assert "| from step 5 | train.learning_rate was 0.0002, now 0.002 |" in card


def test_more_steps_may_be_allowed_to_a_finished_run(tmp_path: Path, llama: Path, rows: Path) -> None:
    run = tmp_path / "run"
    train(run, *RUN, "train.schedule=constant", model=llama, data=rows)
    longer = (*RUN, "train.schedule=constant", "train.max_steps=12")
    result = train(run, *longer, model=llama, data=rows, allowed=("train.max_steps", "plan.steps"))
    whole = train(tmp_path / "whole", *longer, model=llama, data=rows)
    assert result.outcome.steps == 12
    assert losses(result) == losses(whole)
    assert adapter_bytes(result) == adapter_bytes(whole)


def test_a_decision_that_follows_from_an_allowed_change_needs_no_name_of_its_own(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    run = tmp_path / "run"
    train(run, *RUN, model=llama, data=rows)
    more = train(
        run, *RUN, "train.max_steps=10", "engine=peft", model=llama, data=rows, allowed=("train.max_steps", "engine")
    )
    assert len(losses(more)) == 10
    changes = record_of(run)["allowed_changes"]
    assert {"engine", "plan.engine", "plan.steps", "train.max_steps"} <= changes.keys()


def test_a_finished_run_that_may_not_be_continued_stays_finished(tmp_path: Path, llama: Path, rows: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "rows.jsonl"
    shutil.copy(rows, data)
    train(run, *RUN, model=llama, data=data)
    before = record_of(run)
    with data.open("a", encoding="utf-8") as stream:
        stream.write('{"instruction": "One more.", "output": "Yes."}\n')
    with pytest.raises(NoCheckpoint, match="started with other settings"):
        train(run, *RUN, "train.max_steps=10", model=llama, data=data, allowed=("train.max_steps",))
    assert record_of(run) == before
    assert json.loads((run / "status.json").read_text(encoding="utf-8"))["state"] == "finished"


def test_a_finished_run_without_a_step_left_keeps_its_record_whatever_is_allowed(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    """It said 2e-3 of a run that was trained with 2e-4."""
    run = tmp_path / "run"
    train(run, *RUN, model=llama, data=rows)
    before = {file.name: file.read_bytes() for file in run.iterdir() if file.suffix in (".json", ".jsonl")}
    card = (run / "adapter" / "README.md").read_bytes()
    with pytest.raises(
        NoCheckpoint, match=r"finished at step 8: no step is left .* train\.learning_rate 0\.002"
    ) as refused:
        train(run, *RUN, "train.learning_rate=2e-3", model=llama, data=rows, allowed=("train.learning_rate",))
    assert "--max-steps" in str(refused.value.hint)
    assert "--fresh" in str(refused.value.hint)
    assert record_of(run) == json.loads(before["run.json"])
    assert (run / "metrics.jsonl").read_bytes() == before["metrics.jsonl"]
    assert (run / "adapter" / "README.md").read_bytes() == card
    assert json.loads((run / "status.json").read_text(encoding="utf-8"))["state"] == "finished"


def test_metric_lines_over_many_steps_are_the_same_after_a_cut(tmp_path: Path, llama: Path, rows: Path) -> None:
    settings = (*RUN, "train.max_steps=12", "logging.every=5", "checkpoints.every=4")
    cut_off(tmp_path / "run", *settings, after=7, model=llama, data=rows)
    result = train(tmp_path / "run", *settings, model=llama, data=rows)
    whole = train(tmp_path / "whole", *settings, model=llama, data=rows)
    assert [line["step"] for line in whole.metrics] == [1, 4, 5, 8, 10, 12]
    assert [(line["step"], line["loss"]) for line in result.metrics] == [
        (line["step"], line["loss"]) for line in whole.metrics
    ]


def test_the_best_step_is_saved_where_no_save_was_due_and_a_fallback_keeps_its_own_best(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    run = tmp_path / "run"
    other = tmp_path / "other.jsonl"
    row = {"instruction": "Write the words backwards.", "input": "river apple", "output": "QX 17 !? 42 ZJ 99"}
    other.write_text(f"{json.dumps(row)}\n" * 4, encoding="utf-8")
    settings = (
        *RUN,
        "train.max_steps=12",
        "train.learning_rate=5e-2",
        f"data.validation={other}",
        "evaluation.every=3",
        "checkpoints.every=4",
        "checkpoints.keep_best=true",
    )
    result = train(run, *settings, model=llama, data=rows)
    by_step = {line["step"]: line["loss"] for line in result.evaluations}
    best = min(by_step, key=lambda step: by_step[step])
    assert best % 4, "the case is useless unless the best step is none at which a save is due"
    assert result.outcome.best_step == best
    assert best in [step for step, _ in visible(run / "checkpoints")]


def test_a_best_checkpoint_that_is_gone_is_not_counted_on(tmp_path: Path, llama: Path, rows: Path) -> None:
    run = tmp_path / "run"
    settings = (*RUN, "data.validation=8", "evaluation.every=2", "checkpoints.keep_best=true")
    cut_off(run, *settings, after=7, model=llama, data=rows)
    newest, *older = [path for _, path in visible(run / "checkpoints")]
    for path in older:
        shutil.rmtree(path)
    assert newest.name == "checkpoint-6"
    result = train(run, *settings, model=llama, data=rows)
    assert result.outcome.best_step in {6, 8}


@pytest.mark.parametrize("error", [DiskFull, Diverged])
def test_an_end_that_cannot_be_recorded_keeps_its_exit_code(
    error: type[DiskFull | Diverged], tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails(Silent):
        def event(self, event: Event) -> None:
            if isinstance(event, StepDone):
                monkeypatch.setattr(atomic_io, "replace", full)
                raise error("as it was")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    view = Fails()
    with pytest.raises(error, match="as it was"):
        train(tmp_path / "run", *RUN, model=llama, data=rows, view=view)
    assert any("could not be recorded: " in line for line in view.stages)


def test_a_metrics_file_that_a_power_cut_spoilt_does_not_stop_a_run(tmp_path: Path, llama: Path, rows: Path) -> None:
    run = tmp_path / "run"
    cut_off(run, *RUN, after=5, model=llama, data=rows)
    with (run / "metrics.jsonl").open("ab") as stream:
        stream.write(b"\0\0\0\0\n\xff\xfe{\n" + b'{"kind": "train", "st')
    result = train(run, *RUN, model=llama, data=rows)
    assert [line["step"] for line in result.metrics] == list(range(1, 9))


def test_a_template_that_writes_todays_date_is_told_the_day_on_which_the_run_began(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    run, template = tmp_path / "run", tmp_path / "dated.jinja"
    template.write_text(
        "{{ strftime_now('%Y %B %d') }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    )
    settings = (*RUN, f"data.template={template}")
    cut_off(run, *settings, after=5, model=llama, data=rows)
    record = record_of(run)
    assert record["data"]["date"] == record["started"][:10]
    moved = {**record, "started": f"2020-02-03{record['started'][10:]}"}
    (run / "run.json").write_text(json.dumps(moved), encoding="utf-8")
    with pytest.raises(NoCheckpoint, match="other settings") as refused:
        train(run, *settings, model=llama, data=rows)
    changed = [problem.what.split()[0] for problem in refused.value.problems]
    assert "data.train.tokens" in changed, "the date is the record's, and what it changes is seen"
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    assert train(run, *settings, model=llama, data=rows).outcome.steps == 8
