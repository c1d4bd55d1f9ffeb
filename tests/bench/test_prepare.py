"""bench/prepare: its side of ours runs on a few rows, by the code that a training uses."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
ROWS = 300


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    loader = SourceFileLoader("bench_prepare", str(ROOT / "bench" / "prepare"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_all_rows_become_packs_and_the_completions_are_learned(bench: ModuleType, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    bench.write_rows(rows, rows=ROWS)
    bench.train_tokenizer(rows, tmp_path)
    measured = bench.ours(rows, tokenizer_folder=tmp_path, scratch=tmp_path / "cache")
    assert 0 < measured["to_packs_cpu_seconds"] < measured["cpu_seconds"]
    assert 0.5 < measured["supervised_tokens"] / measured["tokens"] < 0.8
    assert measured["tokens"] / bench.MAX_LENGTH <= measured["packs"] < ROWS
