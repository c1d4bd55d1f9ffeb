"""The types of a decision: what was decided for a run, and why.

An optimisation is one pure module with a `decide(question) -> Decision`. It reads what the user asked, what the
machine, the model and the data are, and what was decided before it; it never touches the machine. What it decides
is carried out in the engine and in `model/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loradock import memory
from loradock.config.schema import RunConfig
from loradock.facts import DataFacts, Facts, ModelFacts

MEMORY_SHARE = 0.9
GPU_ROWS = 8
GPU_TOKENS = 16_384
CPU_TOKENS = 4_096


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One thing that a run decided: its name, the value (JSON-able), and the reason in a sentence."""

    name: str
    value: Any
    why: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that a decision may look at. `decided` maps a name to the value decided before."""

    config: RunConfig
    facts: Facts
    model: ModelFacts
    data: DataFacts
    decided: Mapping[str, Any]

    @property
    def on_gpu(self) -> bool:
        """True where the run uses a card."""
        return self.decided["device"] == "cuda"

    @property
    def memory_bytes(self) -> int:
        """Memory of the device that the run may plan with."""
        whole = self.facts.gpu.memory_bytes if self.on_gpu else self.facts.memory_bytes // self.facts.processes_here
        return int(whole * MEMORY_SHARE)

    @property
    def samples_per_rank(self) -> int:
        """Samples of an optimiser step that fall to one process."""
        return math.ceil(self.config.train.global_batch / self.facts.world_size)

    @property
    def row_tokens(self) -> int:
        """Tokens of a row that a micro-batch has to hold: the longest there is, packed the longest allowed."""
        return self.data.limit_tokens if self.decided["packing"] else self.data.longest_tokens

    @property
    def useful_rows(self) -> int:
        """Rows of a micro-batch beyond which there is nothing left to put in, or the device is busy anyway."""
        most = self.samples_per_rank
        if self.decided["packing"]:
            most = math.ceil(most * self.data.mean_tokens / self.row_tokens)
        busy_tokens = GPU_TOKENS if self.on_gpu else CPU_TOKENS
        return max(1, min(most, busy_tokens // self.row_tokens))

    def expected_bytes(self, *, micro_batch: int, checkpointing: bool, optimizer: str) -> dict[str, int]:
        """Bytes by component for a pass of `micro_batch` rows as long as the longest there can be."""
        return memory.expected(
            self.model,
            memory.Batch(rows=micro_batch, length=self.row_tokens, is_packed=self.decided["packing"]),
            quantization=self.config.model.quantization,
            double_quant=self.config.model.double_quant,
            dtype=self.decided["compute_dtype"],
            rank=self.config.lora.rank,
            optimizer=optimizer,
            checkpointing=checkpointing,
            attention=self.decided["attention"],
            has_dropout=self.config.lora.dropout > 0,
        )


Decide = Callable[[Question], Decision]


def asked(name: str, value: Any) -> Decision:
    """A decision that the user took."""
    return Decision(name=name, value=value, why="asked for")
