"""What a verb imports: an answer or a refusal that needs no tokenizer comes without the libraries that take seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import BASE

HEAVY = {"torch", "transformers", "datasets", "pandas", "peft", "bitsandbytes", "trl", "accelerate"}
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}
MOST = 800
"""Modules: about 0.7 s of CPU."""
ROW = '{"prompt": "a", "completion": "b"}\n'
VERBS: dict[str, tuple[int, list[str]]] = {
    "config show": (0, ["config", "show", "run.yaml"]),
    "config validate": (0, ["config", "validate", "run.yaml"]),
    "runs": (0, ["runs", "."]),
    "report, of no run": (66, ["report", "nowhere"]),
    "render, of a hub model without a commit": (78, ["render", "job", "hub.yaml"]),
    "data stats, in characters": (0, ["data", "stats", "--data", "rows.jsonl"]),
    **{
        f"{verb}, of {what}": (code, [*verb.split(), f"{file}.yaml"])
        for verb in ("data show", "data stats", "plan")
        for what, file, code in (
            ("a model that is not there", "model", 66),
            ("rows that are not there", "absent", 66),
            ("rows that are none", "bad", 65),
        )
    },
}


def settings(folder: Path, name: str, *, model: str, rows: str) -> None:
    text = f"model:\n  name: {model}\ndata:\n  sources:\n    - path: {rows}\n"
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


@pytest.mark.thin(6)
@pytest.mark.parametrize("verb", VERBS)
def test_what_needs_no_tokenizer_is_answered_without_large_libraries(verb: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROW, encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text(ROW + '{"prompt": 1, "completion": }\n', encoding="utf-8")
    settings(tmp_path, "run", model=str(BASE), rows="rows.jsonl")
    settings(tmp_path, "hub", model="some/model", rows="rows.jsonl")
    settings(tmp_path, "model", model="nowhere", rows="rows.jsonl")
    settings(tmp_path, "absent", model=str(BASE), rows="rowz.jsonl")
    settings(tmp_path, "bad", model=str(BASE), rows="bad.jsonl")
    code, arguments = VERBS[verb]
    command = [sys.executable, "-X", "importtime", "-m", "loradock", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=OFFLINE, timeout=120)
    assert done.returncode == code, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.rpartition("|")[2].strip() for line in lines}
    assert modules.isdisjoint(HEAVY)
    assert len(modules) < MOST


def imported(arguments: list[str], folder: Path) -> set[str]:
    """The modules that a verb imports, on rows and the small base."""
    (folder / "rows.jsonl").write_text(ROW * 4, encoding="utf-8")
    command = [sys.executable, "-X", "importtime", "-m", "loradock", *arguments]
    command += ["--model", str(BASE), "--data", "rows.jsonl"]
    around = {**OFFLINE, "LORADOCK_CACHE": str(folder / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=around, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_rows_are_shown_without_torch(tmp_path: Path) -> None:
    modules = imported(["data", "show"], tmp_path)
    assert "transformers" in modules
    assert modules.isdisjoint(HEAVY - {"transformers"})


@pytest.mark.thin(6)
def test_a_base_that_was_looked_at_before_is_planned_without_torch(tmp_path: Path) -> None:
    assert "torch" in imported(["plan"], tmp_path)
    for verb in (["plan"], ["data", "stats"]):
        assert imported(verb, tmp_path).isdisjoint(HEAVY - {"transformers"})
