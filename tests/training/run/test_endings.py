"""How runs end: best checkpoint, early stop, divergence, failure; and what the record says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import copy_tree, write_rows
from whole_runs import Silent, losses, train

from loradock.analysis.report.console import summary
from loradock.errors import DataError, Diverged, Interrupted, Stopped
from loradock.training.run_dir.record import metrics

RUN = ("train.global_batch=8", "lora.rank=4", "data.validation=8")


def record_of(directory: Path) -> dict[str, object]:
    return json.loads((directory / "run.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("asked", ["checkpoints.keep_best=true", "train.early_stopping=2"])
def test_the_best_checkpoint_is_kept_and_exported_also_where_the_run_stops_early(
    asked: str, tmp_path: Path, llama: Path, rows: Path
) -> None:
    """Training makes the held-out answers less and less likely, so that an early evaluation is the best."""
    row = {"instruction": "Write the words backwards.", "input": "river apple", "output": "QX 17 !? 42 ZJ 99"}
    other = tmp_path / "other.jsonl"
    other.write_text(f"{json.dumps(row)}\n" * 4, encoding="utf-8")
    result = train(
        tmp_path / "run",
        "train.global_batch=8",
        "lora.rank=4",
        "train.max_steps=12",
        "train.learning_rate=2e-2",
        f"data.validation={other}",
        "evaluation.every=2",
        asked,
        "checkpoints.keep=1",
        model=llama,
        data=rows,
    )
    by_step = {line["step"]: line["loss"] for line in result.evaluations}
    best = min(by_step, key=lambda step: by_step[step])
    assert best != result.outcome.steps, "the case is useless unless an earlier evaluation is the best"
    assert result.outcome.ended == ("early stop" if asked.startswith("train") else "last step")
    told = summary(result.record, result.metrics, result.evaluations)[-1]
    assert told == f"exported: the best checkpoint, step {best}, loss {by_step[best]:.4f}"
    assert result.outcome.best_step == best
    kept = load_file(tmp_path / "run" / "checkpoints" / f"checkpoint-{best}" / "adapter_model.safetensors")
    exported = load_file(result.adapter / "adapter_model.safetensors")
    assert all(torch.equal(kept[name], exported[name]) for name in exported)


def test_a_run_stops_after_the_step_that_is_named_with_its_evaluation_held_and_all_committed(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    settings = (*RUN, "train.max_steps=5", "evaluation.every=3", "logging.every=4", "checkpoints.every=5")
    with pytest.raises(Stopped, match=r"stopped by --stop-after 3; step 3 is committed") as stop:
        train(tmp_path / "run", *settings, model=llama, data=rows, stop_after=3)
    assert (stop.value.hint or "").startswith("the same command without --stop-after")
    assert [line["step"] for kind in ("train", "eval") for line in metrics(tmp_path / "run", kind)] == [1, 3, 3]
    with pytest.raises(Interrupted):
        train(tmp_path / "run", *settings, model=llama, data=rows, stop_after=3)
    result = train(tmp_path / "run", *settings, model=llama, data=rows, stop_after=5)
    assert (result.outcome.steps, result.outcome.ended) == (5, "last step")


def test_training_stops_early_when_nothing_improves(tmp_path: Path, llama: Path, rows: Path) -> None:
    settings = (*RUN, "train.max_steps=40", "evaluation.every=2", "train.early_stopping=2", "train.learning_rate=1e-30")
    result = train(tmp_path / "run", *settings, model=llama, data=rows)
    assert result.outcome.ended == "early stop"
    assert result.outcome.steps == 6
    assert result.outcome.best_step == 2
    assert (tmp_path / "run" / "checkpoints" / "checkpoint-6").is_dir()


def test_who_keeps_no_best_and_stops_early_is_told_that_the_last_is_exported(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    stops = ("train.max_steps=40", "evaluation.every=2", "train.early_stopping=1", "train.learning_rate=1e-30")
    result = train(tmp_path / "run", *RUN, *stops, "checkpoints.keep_best=false", model=llama, data=rows)
    told = summary(result.record, result.metrics, result.evaluations)[-1]
    assert told == "exported: the last step, 4; the best is not kept (checkpoints.keep_best=false)"


@pytest.mark.parametrize("save_every", [1, 4])
def test_a_non_finite_loss_ends_the_run_and_nothing_is_committed(
    save_every: int, tmp_path: Path, llama: Path, rows: Path
) -> None:
    """At the first step, whether or not a checkpoint is due there: the save has a guard of its own.

    The weights are finite, else the base is refused when it is opened; what is computed from them is not.
    """
    model = copy_tree(llama, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][:] = 3e38
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Diverged, match="step 1"):
        train(tmp_path / "run", *RUN, "train.max_steps=4", f"checkpoints.every={save_every}", model=model, data=rows)
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    assert not (tmp_path / "run" / "adapter").exists()
    assert (record_of(tmp_path / "run")["status"], record_of(tmp_path / "run")["exit_code"]) == ("failed", 79)


def test_a_failed_run_keeps_its_record(tmp_path: Path, llama: Path) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text('{"instruction": "a", "output": "b"}\n{"instruction": 7, "output": "b"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"bad.jsonl:2"):
        train(tmp_path / "run", "train.max_steps=1", model=llama, data=data)
    record = record_of(tmp_path / "run")
    assert (record["status"], record["exit_code"]) == ("failed", 65)
    assert "bad.jsonl:2" in str(record["error"])


class Noted(Silent):
    """Keeps what is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep a line."""
        self.notes.append(text)


def test_columns_that_no_field_takes_are_named_at_the_start_and_in_the_record(tmp_path: Path, llama: Path) -> None:
    rows = [{"instruction": f"Say {n}.", "output": str(n), "id": f"r{n}", "url": "u" if n else ""} for n in range(4)]
    data, held_out = tmp_path / "rows.jsonl", tmp_path / "held_out.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    held_out.write_text(json.dumps({**rows[0], "source": "web"}), encoding="utf-8")
    view, settings = Noted(), ("train.max_steps=1", "lora.rank=4", f"data.validation={held_out}")
    record = train(tmp_path / "run", *settings, model=llama, data=data, view=view).record["data"]
    assert [note.partition(": ")[2] for note in view.notes if "columns not used" in note] == [
        "columns not used by format alpaca: id (100 % of rows, such as 'r0'), url (75 % of rows, such as 'u')",
        "columns not used by format alpaca: id (100 % of rows, such as 'r0'), source (100 % of rows, such as 'web')",
    ]
    (source,) = record["sources"]
    assert [(each["name"], each["rows"]) for each in source["unused_columns"]] == [("id", 4), ("url", 3)]


def test_over_long_rows_are_counted_in_the_record(tmp_path: Path, llama: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", rows=12, longest=40)
    first, *_ = data.read_text().splitlines()
    data.write_text(data.read_text() + f"{first}\n" * 2)
    settings = ("train.max_steps=1", "data.max_length=40", "lora.rank=4", "data.max_dropped=1")
    settings += ("data.deduplicate=exact",)
    cut = train(tmp_path / "cut", *settings, model=llama, data=data).record["data"]
    dropped = train(tmp_path / "drop", *settings, "data.long_rows=drop", model=llama, data=data).record["data"]
    assert cut["over_long_rows"] == dropped["over_long_rows"] > 0
    assert dropped["dropped_rows"] == dropped["over_long_rows"]
    assert 0 < cut["lost_tokens"] < dropped["lost_tokens"]
    assert (cut["duplicate_rows"], cut["short_rows"]) == (2, 0)


@pytest.mark.thin(6)
@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "mlflow"])
def test_a_tracker_gets_every_loss(
    tracker: str, tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings = (*RUN, "train.max_steps=3", f"logging.trackers=[{tracker}]")
    result = train(tmp_path / "run", *settings, model=llama, data=rows)
    found = TRACKED[tracker](tmp_path / "run")
    assert found == pytest.approx(losses(result), rel=1e-5)


def from_tensorboard(run: Path) -> list[float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard")).Reload()
    return [event.value for event in events.Scalars("train/loss")]


def from_wandb(run: Path) -> list[float]:
    """From the offline file: LevelDB's log format with protocol buffers inside, all of it in the first block here."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    content = next(run.glob("wandb/offline-run-*/*.wandb")).read_bytes()
    values: list[float] = []
    at = 7  # the file's own header
    while at + 7 <= len(content):
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        record = Record()
        record.ParseFromString(content[at + 7 : at + 7 + length])
        names = [(item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item]
        values += [float(value) for name, value in names if name == "train/loss"]
        at += 7 + length
    return values


def from_mlflow(run: Path) -> list[float]:
    file = next((run / "mlruns").glob("*/*/metrics/train/loss"))
    return [float(line.split()[1]) for line in file.read_text(encoding="utf-8").splitlines()]


TRACKED = {"tensorboard": from_tensorboard, "wandb": from_wandb, "mlflow": from_mlflow}


def test_the_losses_of_validation_sets_with_names_are_in_the_metrics_and_on_the_model_card(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    files = {
        name: write_rows(tmp_path / f"{name}.jsonl", rows=6, seed=seed) for seed, name in enumerate(("chat", "code"))
    }
    named = [f"data.validation.{name}={file}" for name, file in files.items()]
    settings = ("train.max_steps=2", "lora.rank=4", "evaluation.every=1", *named)
    result = train(tmp_path / "run", *settings, model=llama, data=rows)
    assert [sorted(name for name in line if name.startswith("loss_")) for line in result.evaluations] == [
        ["loss_chat", "loss_code"]
    ] * 2
    card = (result.adapter / "README.md").read_text(encoding="utf-8")
    last = result.evaluations[-1]
    assert "| step | evaluation loss | perplexity | loss on chat | loss on code |" in card
    assert f"| {last['loss_chat']:.4f} | {last['loss_code']:.4f} |" in card
