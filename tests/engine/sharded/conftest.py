"""Runs of the sharded engine: processes with the environment that a launcher gives, forked from a warm parent."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from faults.forking import Command, Forking
from safetensors.torch import load

STEPS, SAVE_EVERY = 6, 2
RUN = (
    f"train.max_steps={STEPS}",
    f"checkpoints.every={SAVE_EVERY}",
    "checkpoints.keep=9",
    "train.global_batch=8",
    "train.micro_batch=2",
    "train.workers=0",
    "data.max_length=64",
    "logging.every=1",
    "lora.rank=4",
    "lora.init=gaussian",
    "train.learning_rate=1e-3",
)
SHARDED = ("train.parallel=fsdp",)


@dataclass(frozen=True)
class Group:
    """The processes of a run in the folder."""

    folder: Path
    ranks: Sequence[Command]

    def text(self) -> str:
        return "".join(each.text() for each in self.ranks)

    def finish(self) -> list[int]:
        return [each.finish() for each in self.ranks]

    def reached(self, step: int) -> bool:
        """Wait until a step was made."""
        return self.ranks[0].wait_until(lambda: f"step {step}/{STEPS}" in self.text())


Start = Callable[..., Group]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def start(llama: Path, rows: Path, forking: Forking) -> Start:
    def begin(folder: Path, *settings: str, code: str = "", count: int = 2, model: Path | None = None) -> Group:
        folder.mkdir(exist_ok=True, parents=True)
        sets = [word for setting in (*RUN, *settings) for word in ("--set", setting)]
        inputs = ("--model", str(model or llama), "--data", str(rows), "--output", "out", "--skip-env-check")
        sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        each = {**sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        return Group(
            folder,
            ranks=[
                forking.start(folder, "train", *inputs, *sets, code=code, RANK=str(rank), LOCAL_RANK=str(rank), **each)
                for rank in range(count)
            ],
        )

    return begin


def adapter(folder: Path) -> dict[str, torch.Tensor]:
    return load((folder / "out" / "adapter" / "adapter_model.safetensors").read_bytes())


def losses(folder: Path, kind: str = "train") -> list[float]:
    lines = (json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line["loss"] for line in lines if line["kind"] == kind]


def record(folder: Path) -> dict[str, object]:
    return json.loads((folder / "out" / "run.json").read_text(encoding="utf-8"))
