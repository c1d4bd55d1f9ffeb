"""Rows, arithmetic and figures of bench/train, without training anything."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from bench.train import arithmetic, lines, models, rows, tables
from bench.train.arms import ARMS
from bench.train.arms.base import Task
from bench.train.measures import loss_difference, measured
from bench.train.slices import Place, told
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.prepare import prepare
from loradock.data.row_steps import row_steps
from loradock.data.select import fit
from loradock.data.steps import BatchShape

SHAPE = {"steps": 4, "samples": 2}


def line(arm: str, *, repeat: int = 0, pace: float = 1.0, loss: float = 5.0, status: str = "done") -> dict[str, Any]:
    """A slice of 4 steps of 100 tokens, one each `pace` seconds after a first one of 10."""
    seconds = [10.0 + pace * step for step in range(4)] if status != "failed" else []
    columns = {
        "step": [1, 2, 3, 4],
        "loss": [loss] * 4,
        "tokens": [100] * 4,
        "supervised_tokens": [60] * 4,
        "samples": [2] * 4,
        "seconds": seconds,
    }
    return {
        "kind": "slice",
        "model": "tiny",
        "rows": "commonsense",
        "arm": arm,
        "repeat": repeat,
        "shape": SHAPE,
        "status": status,
        "reason": "out of memory",
        "steps": columns,
        "summary": {"peak_rss_bytes": 2**30, "stack": {"torch": "2"}},
        "operations_per_token": 1e9,
        "machine": {"device": "a CPU", "commit": "abc"},
    }


def test_the_lengths_of_the_row_sets_are_those_that_are_stated() -> None:
    means = {name: statistics.mean(sum(pair) for pair in rows.lengths(name, count=20_000)) for name in rows.SETS}
    assert means["commonsense"] == pytest.approx(155, rel=0.02)
    assert means["instructions"] == pytest.approx(166, rel=0.03)
    assert (means["fixed-512"], means["fixed-1024"], means["fixed-2048"]) == (512, 1024, 2048)


def test_rows_are_the_same_ids_for_us_and_for_the_peers_in_the_order_of_our_steps(tmp_path: Path) -> None:
    models.write_tokenizer(tmp_path, vocabulary=1000)
    shape = {"steps": 3, "samples": 4, "seed": 1}
    folder = rows.make("commonsense", model=tmp_path, folder=tmp_path / "rows", **shape)
    known = rows.Rows.load(folder / "rows.npz")
    texts = [json.loads(text) for text in (folder / "ordered.jsonl").read_text(encoding="utf-8").splitlines()]
    examples = known.examples()
    for row, ids, labels in zip(texts, examples["input_ids"], examples["labels"], strict=True):
        spoken, learned = row["prompt"].split(), row["completion"].split()
        assert ids == [int(word[1:]) for word in spoken + learned] + [2]
        assert labels == [-100] * len(spoken) + ids[len(spoken) :]
    assert len(known) == 12
    assert examples["input_ids"] == ids_that_our_steps_see(folder, **shape)


def ids_that_our_steps_see(folder: Path, *, steps: int, samples: int, seed: int) -> list[list[int]]:
    """Rows of the packed micro-batches of a run on `rows.jsonl`, from the cache that was made for it."""
    cached = DataConfig(sources=(SourceConfig(path=str(folder / "rows.jsonl"), format="prompt-completion"),))
    ready = prepare(cached, tokenizer=AutoTokenizer.from_pretrained(folder.parent.parent), cache_dir=folder / "cache")
    fitted = fit(ready, rows=np.arange(ready.rows), max_length=rows.LONGEST)
    shape = BatchShape(micro_batch=1, packing=True, max_length=rows.LONGEST)
    ours = row_steps(ready, fitted=fitted, global_batch=samples, shape=shape, seed=seed, total_steps=steps)
    batches = [batch for step in range(steps) for batch in ours[step].micro_batches]
    return [ids.tolist() for batch in batches for ids, _ in batch.samples()]


def test_the_operations_of_a_row_are_those_of_two_passes_counted_by_hand() -> None:
    config = {
        "hidden_size": 4,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 10,
    }
    weights = 4 * 4 + 2 * (4 * 2) + 4 * 4 + 3 * (4 * 8)
    adapters = 16 * (8 + 6 + 6 + 8 + 3 * 12)
    linear = 2 * 3 * (2 * weights + 3 * adapters)
    attention = 2 * 3 * 2 * 6 * 4
    head = 2 * 2 * 1 * 10 * 4
    assert arithmetic.operations(config, lengths=[3], supervised_tokens=1) == linear + attention + head
    windowed = arithmetic.operations({**config, "sliding_window": 2}, lengths=[3], supervised_tokens=1)
    assert windowed == linear + 2 * 3 * 2 * 5 * 4 + head


def test_a_speed_counts_the_steps_after_the_warm_up_alone() -> None:
    found = measured(line("ours", pace=0.5), warmup_steps=2)
    assert found
    assert found.tokens_per_second == pytest.approx(200)
    assert (found.samples_per_second, found.supervised_per_second) == (pytest.approx(4), pytest.approx(120))
    assert found.first_step_seconds == 10
    assert found.flops == pytest.approx(200e9)


def test_losses_are_compared_only_where_the_samples_were_the_same() -> None:
    other = line("trl-packing", loss=5.5)
    assert loss_difference(other, line("trl-vanilla")) == pytest.approx(0.5)
    other["steps"]["tokens"] = [90] * 4
    assert loss_difference(other, line("trl-vanilla")) is None


def test_the_table_shows_the_spread_the_best_peer_and_why_an_arm_failed(tmp_path: Path) -> None:
    found = [
        line("trl-vanilla"),
        line("ours", pace=0.4),
        line("trl-best", pace=0.8),
        line("ours", repeat=1, pace=0.5),
        line("unsloth", status="failed"),
        {"kind": "floor", "rates": {"ceiling_flops": 1e12}},
    ]
    text = tables.markdown(found, warmup_steps=1, peak_flops=None)
    assert "| ours | 225 (200 .. 250) | 1.80x |" in text
    assert "| trl-best | 125 | 1.00x |" in text
    assert "| unsloth | out of memory |" in text
    assert "22.5%" in text
    tables.chart(found, tmp_path / "chart.png", warmup_steps=1)
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_a_slice_that_was_run_is_found_again_by_its_model_rows_arm_repeat_and_shape(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    lines.append(file, line("ours"))
    with file.open("a", encoding="utf-8") as stream:
        stream.write('{"kind": "slice", "mod')
    lines.append(file, line("unsloth", status="failed"))
    kept = lines.read(file)
    assert len(kept) == 2
    key = {"model": "tiny", "rows": "commonsense", "repeat": 0, "shape": SHAPE}
    assert lines.has(kept, lines.Key(arm="ours", **key))
    assert not lines.has(kept, lines.Key(arm="ours", **{**key, "repeat": 1}))
    assert not lines.has(kept, lines.Key(arm="ours", **{**key, "shape": {**SHAPE, "steps": 5}}))
    assert lines.has(kept, lines.Key(arm="unsloth", **key))
    assert not lines.has(kept, lines.Key(arm="unsloth", **key), counts_failed=False)


def task(**values: Any) -> Task:
    """A task of 4 steps of 64 samples."""
    fields = dict.fromkeys(("arm", "device", "model", "rows", "adapter", "scratch", "attention"), "")
    numbers = {"steps": 4, "samples": 64, "longest": 300, "budget_tokens": 8192, "seed": 0, "threads": 0}
    return Task(**{**fields, **numbers, "dropout": 0.0, "settings": {}, "limit_seconds": 1.0, "began": 0.0, **values})


def test_the_micro_batch_of_an_arm_without_padding_divides_a_step_and_keeps_the_budget() -> None:
    assert task().micro_batch(155.0) == 8
    flat = {"batch": "padding-free"}
    assert [task(settings=flat).micro_batch(mean) for mean in (10.0, 155.0, 512.0, 2048.0, 9000.0)] == [
        64,
        32,
        16,
        4,
        1,
    ]


def test_a_slice_that_was_cut_off_keeps_its_steps_and_one_that_failed_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("a first line\nout of memory\n", encoding="utf-8")
    step = {"step": 1, "loss": 1.0, "tokens": 5, "supervised_tokens": 3, "samples": 2, "seconds": 9.0}
    end = {"summary": {"peak_rss_bytes": 7}}
    cut = told([step, end], task=task(), code=0, log=log)
    assert (cut["status"], cut["steps"]["tokens"], cut["summary"]) == ("cut", [5], {"peak_rss_bytes": 7})
    assert told([step, end], task=task(steps=1), code=0, log=log)["status"] == "done"
    failed = told([step], task=task(), code=1, log=log)
    assert failed["status"] == "failed"
    assert failed["reason"].endswith("out of memory")
    assert "killed" in told([step], task=task(), code=None, log=log)["reason"]


def test_every_arm_has_a_kind_that_can_be_run_and_each_switch_of_ours_is_an_arm() -> None:
    folder = Path(rows.__file__).with_name("arms")
    assert all((folder / f"{arm.kind}.py").is_file() for arm in ARMS.values())
    assert {name for name in ARMS if name.startswith("ours-without-")} == {
        "ours-without-cache",
        "ours-without-kernels",
        "ours-without-graphs",
        "ours-without-dropout",
        "ours-without-packing",
    }


def test_a_stack_apart_sees_none_of_the_folders_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "src:/ours")
    mine = Place().variables(tmp_path, threads=0)["PYTHONPATH"].split(":")
    assert mine[-2:] == [str(Path("src").absolute()), "/ours"]
    theirs = Place(packages=("/theirs",), is_apart=True).variables(tmp_path, threads=2)
    assert theirs["PYTHONPATH"].split(":")[0] == "/theirs"
    assert len(theirs["PYTHONPATH"].split(":")) == 2
    assert theirs["OMP_NUM_THREADS"] == "2"
