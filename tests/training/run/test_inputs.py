"""Every kind of input goes from the file to an adapter; the seed's own files through the seed's preset."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from datasets import Dataset
from whole_runs import losses, train

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
QUESTION, ANSWER = "Write the words backwards.\n\nriver apple stone", "stone apple river"
TURNS = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
ALPACA: dict[str, Any] = {"instruction": "Write the words backwards.", "input": "river apple stone", "output": ANSWER}
ROWS = 12


def jsonl(file: Path, row: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for _ in range(ROWS)), encoding="utf-8")
    return file


def as_csv(folder: Path) -> Path:
    file = folder / "rows.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=["prompt", "completion"])
        writer.writeheader()
        writer.writerows([{"prompt": f"{QUESTION}\n", "completion": ANSWER}] * ROWS)
    return file


def as_parquet(folder: Path) -> Path:
    file = folder / "rows.parquet"
    pq.write_table(pa.table({"text": [f"{QUESTION}\n{ANSWER}"] * ROWS}), file)
    return file


def as_arrow(folder: Path) -> Path:
    Dataset.from_list([ALPACA] * ROWS).save_to_disk(folder / "rows")
    return folder / "rows"


def as_gzip(folder: Path) -> Path:
    shares = {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]}
    file = folder / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(jsonl(folder / "plain.jsonl", shares).read_bytes()))
    return file


def as_zstd(folder: Path) -> Path:
    file = folder / "rows.jsonl.zst"
    plain = jsonl(folder / "plain.jsonl", {"prompt": TURNS[:1], "completion": TURNS[1:]})
    file.write_bytes(zstandard.compress(plain.read_bytes()))
    return file


def as_json(folder: Path) -> Path:
    file = folder / "rows.json"
    file.write_text(json.dumps([ALPACA] * ROWS, indent=2), encoding="utf-8")
    return file


INPUTS: dict[str, Callable[[Path], Path]] = {
    "alpaca in a JSON array": as_json,
    "messages in JSONL": lambda folder: jsonl(folder / "rows.jsonl", {"messages": TURNS}),
    "ShareGPT in gzipped JSONL": as_gzip,
    "prompt and completion in CSV": as_csv,
    "prompt and completion as messages in JSONL.zst": as_zstd,
    "text in Parquet": as_parquet,
    "alpaca in an arrow directory": as_arrow,
}
RAW = ("prompt and completion in CSV", "text in Parquet")


@pytest.mark.thin(6)
@pytest.mark.parametrize("kind", INPUTS)
def test_a_kind_of_input_trains(kind: str, tmp_path: Path, llama: Path) -> None:
    data = INPUTS[kind](tmp_path)
    settings = ("train.max_steps=3", "train.global_batch=4", "train.learning_rate=1e-2", "lora.rank=4")
    result = train(tmp_path / "run", *settings, model=llama, data=data)
    assert result.record["data"]["sources"][0]["rows"] == ROWS
    assert losses(result)[-1] < losses(result)[0]
    assert (result.adapter / "adapter_model.safetensors").exists()
    is_chat = kind not in RAW
    assert result.record["data"]["conversations"] == ROWS * is_chat
    has_template = (result.adapter / "chat_template.jinja").exists()
    assert has_template == (is_chat or (llama / "chat_template.jinja").exists())
    assert ("apply_chat_template" in (result.adapter / "README.md").read_text(encoding="utf-8")) == is_chat


def test_a_mapped_column_and_two_weighted_sources_train(tmp_path: Path, llama: Path) -> None:
    jsonl(tmp_path / "a.jsonl", {"question": QUESTION, "reply": ANSWER})
    jsonl(tmp_path / "b.jsonl", ALPACA)
    sources = (
        f"data.sources=[{{path: {tmp_path / 'a.jsonl'}, format: prompt-completion, weight: 2, "
        f"fields: {{prompt: question, completion: reply}}}}, {tmp_path / 'b.jsonl'}]"
    )
    settings = (sources, "train.epochs=1", "train.global_batch=4", "lora.rank=4")
    result = train(tmp_path / "run", *settings, model=llama, data=tmp_path / "b.jsonl")
    assert [source["rows"] for source in result.record["data"]["sources"]] == [ROWS, ROWS]
    assert result.record["plan"]["data"]["samples_per_epoch"] == 3 * ROWS


@pytest.mark.thin(1)
def test_the_seeds_file_trains_through_its_preset(tmp_path: Path, llama: Path) -> None:
    data = SHARED / "commonsense_5k.json"
    if not data.exists():
        pytest.skip("shared data absent: commonsense_5k.json")
    faster = ("train.learning_rate=1e-2", "train.warmup=1")  # the preset's 100 warm-up steps are for three epochs
    settings = ("train.max_steps=16", "data.validation=32", *faster)
    result = train(tmp_path / "run", *settings, model=llama, data=data, preset="commonsense-adapters")
    record = result.record
    assert losses(result)[-1] < losses(result)[0] - 0.5
    assert record["dtypes"]["base"] == "nf4 in uint8"
    assert record["coverage"]["quantised_weights"] == 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128)
    assert record["data"]["sources"][0]["rows"] == 5000
    assert math.isfinite(result.evaluations[-1]["perplexity"])
    complete = json.loads((result.directory / "run.json").read_text(encoding="utf-8"))
    for part in (
        "status started ended config origins facts plan data base weights_sha256 coverage dtypes outcome "
        "timings_seconds exit_code engine name"
    ).split():
        assert part in complete, part
    assert complete["status"] == "finished"
    assert len(complete["weights_sha256"]["model.safetensors"]) == 64
