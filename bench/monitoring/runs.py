"""The training whose steps are timed: a small model on made-up rows, as `loradock train` runs it."""

from __future__ import annotations

import json
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARMUP_STEPS = 5
ROWS, WORDS = 256, ("river", "apple", "stone", "cloud", "lamp", "table", "horse", "green", "seven", "window")
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Rows in a folder with a model beside them, or another one, and how many steps a run makes."""

    folder: Path
    steps: int
    model: Path


def made(folder: Path, *, steps: int) -> Subject:
    """Write them."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from loradock import demo

    tokenizer = AutoTokenizer.from_pretrained(Path(demo.__file__).parent / "base")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **SHAPE)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    draw = random.Random(0)
    rows = [{"instruction": "Repeat.", "output": " ".join(draw.choices(WORDS, k=24))} for _ in range(ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Subject(folder=folder, steps=steps, model=folder / "model")


def step_seconds(subject: Subject, *more: str, every_seconds: float = 0.0) -> float:
    """Mean seconds of a step after the first ones, of a whole run with samples so often (0: none); `more`: settings."""
    metrics, _ = trained(subject, *more, every_seconds=every_seconds)
    lines = [line for line in metrics if line["step"] > WARMUP_STEPS]
    return sum(line["seconds"] for line in lines) / len(lines)


def step_cpu_seconds(subject: Subject, *more: str) -> float:
    """The same in CPU seconds of the process, which other programs on the machine do not count into."""
    _, ends = trained(subject, *more)
    return (ends[-1] - ends[WARMUP_STEPS - 1]) / (len(ends) - WARMUP_STEPS)


def trained(subject: Subject, *more: str, every_seconds: float = 0.0) -> tuple[list[dict[str, Any]], list[float]]:
    """The metric lines of a run, and the CPU seconds that the process had taken at the end of each step."""
    from loradock.config.load import load
    from loradock.machine import Host, probe
    from loradock.training.context import opened
    from loradock.training.run import run

    folder = subject.folder
    settings = [
        f"train.max_steps={subject.steps}",
        "train.global_batch=4",
        "logging.every=1",
        f"checkpoints.every={subject.steps}",
        f"data.cache={folder / 'cache'}",
        f"logging.monitor_seconds={every_seconds}",
        *more,
    ]
    shortcuts = {"--model": str(subject.model), "--data": [str(folder / "rows.jsonl")]}
    directory, view = folder / "run", Silent()
    directory.mkdir()
    try:
        loaded = load(None, overrides=settings, shortcuts=shortcuts)
        result = run(opened(loaded, facts=probe.gather(Host()), directory=directory, view=view))
    finally:
        shutil.rmtree(directory)
    return result.metrics, view.ends


class Silent:
    """A view that shows nothing, and keeps the CPU seconds of the process at the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def note(self, text: str) -> None:
        """Nothing."""

    def stage(self, text: str) -> None:
        """Nothing."""

    def prepared_rows(self, rows: int, tokens: int) -> None:
        """Nothing."""

    def plan(self, plan: Any) -> None:
        """Nothing."""

    def event(self, event: Any) -> None:
        """Note the end of a step."""
        if type(event).__name__ == "StepDone":
            self.ends.append(time.process_time())
