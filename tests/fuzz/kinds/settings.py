"""Configurations, manifests to check, lock files, and what other nodes say of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fuzz.kinds.base import Kind
from fuzz.kinds.run_directory import SPOILT, ran
from fuzz.mutate import any_of, near_start, of_bytes, of_text
from small_venv import make_venv
from tiny import make_llama, write_rows

CONFIGURATION = """\
name: fuzz
model:
  name: model
  quantization: nf4
data:
  sources:
    - path: rows.jsonl
      format: alpaca
      weight: 1.0
  validation: 0.1
  max_length: 64
lora: {rank: 4, alpha: 8, targets: [q_proj, v_proj]}
train:
  learning_rate: 1e-4
  max_steps: 5
  global_batch: 4
logging: {every: 1}
"""
NODE = ("env-check", "--level", "quick", "--only", "system", "--compare", "node.json")
LOCK = ("lock", "verify", "--venv", "venv", "--lock", "requirements.lock")


def make_configuration(folder: Path) -> None:
    """A configuration, with its model and rows."""
    make_llama(folder / "model")
    write_rows(folder / "rows.jsonl", rows=16)
    (folder / "run.yaml").write_text(CONFIGURATION, encoding="utf-8")


def make_manifest(folder: Path) -> None:
    """A run on two nodes, as Kubernetes objects."""
    os.chdir(folder)
    image = "registry.example/loradock@sha256:" + "0" * 64
    sizes = ("--image", image, "--gpu", "h200", "--gpus", "2", "--nodes", "2")
    places = ("--data-claim", "data", "--output-claim", "runs", "-o", "run.yaml")
    ran("render", "jobset", "--model", "./model", "--data", "rows.jsonl", *sizes, *places)


def make_node(folder: Path) -> None:
    """What this node says of itself."""
    command = [sys.executable, "-m", "loradock", *NODE[:5], "--json"]
    with (folder / "node.json").open("w", encoding="utf-8") as stream:
        subprocess.run(command, stdout=stream, check=True)


def make_lock(folder: Path) -> None:
    """A small environment and its lock."""
    make_venv(folder)


SPOILT_TEXT = any_of(of_text, of_text, of_text, of_bytes)
SETTINGS = (
    Kind(
        name="YAML, config validate",
        make=make_configuration,
        file="run.yaml",
        mutate=SPOILT_TEXT,
        command=("config", "validate", "run.yaml"),
    ),
    Kind(name="YAML, plan", make=make_configuration, file="run.yaml", mutate=SPOILT_TEXT, command=("plan", "run.yaml")),
    Kind(
        name="Kubernetes manifest",
        make=make_manifest,
        file="run.yaml",
        mutate=SPOILT_TEXT,
        command=("render", "--check", "run.yaml"),
    ),
    Kind(name="node.json, --compare", make=make_node, file="node.json", mutate=SPOILT, command=NODE, share=0.2),
    Kind(
        name="lock file",
        make=make_lock,
        file="requirements.lock",
        mutate=any_of(of_text, near_start(4096)),
        command=LOCK,
        share=0.3,
    ),
)
