"""Runs of the fsdp backend: processes with the environment that a launcher gives, forked from a warm parent."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from faults.forking import Command, Forking
from proven import unchecked
from safetensors.torch import load
from tiny import make_llama

from loradock.training.checkpoint.store import visible

STEPS = 6
RUN = (
    f"train.max_steps={STEPS}",
    "checkpoints.every=2",
    "checkpoints.keep=9",
    "train.global_batch=8",
    "train.micro_batch=2",
    "train.workers=0",
    "data.max_length=64",
    "data.validation=6",
    "evaluation.every=3",
    "logging.every=1",
    "lora.rank=3",
    "lora.init=gaussian",
    "train.learning_rate=1e-3",
    "train.max_grad_norm=0.2",
    "limits.peer_seconds=60",
)


@dataclass(frozen=True)
class Group:
    """The processes of a run in `folder`, and what it left there."""

    folder: Path
    ranks: Sequence[Command]

    def text(self) -> str:
        return "".join(each.text() for each in self.ranks)

    def finish(self) -> list[int]:
        return [each.finish() for each in self.ranks]

    def reached(self, step: int) -> bool:
        """Wait until a step was made."""
        return self.ranks[0].wait_until(lambda: f"step {step}/{STEPS}" in self.text())

    def adapter(self) -> dict[str, torch.Tensor]:
        return load((self.folder / "out" / "adapter" / "adapter_model.safetensors").read_bytes())

    def losses(self, kind: str = "train") -> list[float]:
        lines = map(json.loads, (self.folder / "out" / "metrics.jsonl").read_text("utf-8").splitlines())
        return [line["loss"] for line in lines if line["kind"] == kind]

    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "out" / "run.json").read_text(encoding="utf-8"))

    def checkpoint(self) -> Path:
        """The newest."""
        return visible(self.folder / "out" / "checkpoints")[0][1]

    def training_state(self) -> dict[str, Any]:
        return torch.load(io.BytesIO((self.checkpoint() / "training_state.pt").read_bytes()), weights_only=True)


Start = Callable[..., Group]


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of three layers whose head is a matrix of its own."""
    return make_llama(tmp_path_factory.mktemp("untied"), num_hidden_layers=3, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def start(rows: Path, forking: Forking) -> Start:
    def begin(folder: Path, *settings: str, model: Path, data: Path = rows, count: int = 2, code: str = "") -> Group:
        folder.mkdir(exist_ok=True, parents=True)
        sets = [word for setting in (*RUN, *settings) for word in ("--set", setting)]
        inputs = ("--model", str(model), "--data", str(data), "--output", "out", unchecked("two processes at once"))
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        each = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        each |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = [
            forking.start(folder, "train", *inputs, *sets, code=code, RANK=str(rank), LOCAL_RANK=str(rank), **each)
            for rank in range(count)
        ]
        return Group(folder, ranks)

    return begin


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, of five of which one rank has three and the other two."""
    file = tmp_path_factory.mktemp("answers") / "pairs.jsonl"
    lines = [
        {"prompt": f"{number} stones {number % 5}", "chosen": "lamp stone", "rejected": "cat " * (1 + number % 7)}
        for number in range(24)
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return file


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
