"""What a knob looks at: what the user asked, what the machine, the model and the data are, what was decided before.

Pure: it never touches the machine. What is decided is carried out in the backends and in `model/`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from loradock.catalog import engines
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError
from loradock.facts import DataFacts, Facts, ModelFacts
from loradock.plan import gpu_table, memory, obstacles, pass_shape, throughput
from loradock.plan.memory import sharded
from loradock.plan.memory.fast import FastMemory, Setting, Shape
from loradock.plan.pass_shape import Choice, Limits
from loradock.plan.plan import Decision, Plan

Value = TypeVar("Value")

MEMORY_SHARE = 0.9
CPU_CACHE_SHARE = 0.25
"""Of the memory of a CPU, for dense weights: other programs live there, too."""
GPU_TOKENS = 16_384
"""Where any GPU is busy: dequantising costs 1.3 % of a pass of a 7B model on an H200, launches less, packs are 99 %
full. Beyond it memory buys nothing."""
CPU_TOKENS = 4_096
PACKED_SHARE = 0.95
"""How full packs are that samples fill in order: 97 % at 4 096 tokens was measured on rows of 166."""
ROW_SPREAD = 0.75
"""Assumed: the standard deviation of rows' lengths over their mean, as instruction data have it."""
FULL_STEP = 1.6
"""Standard deviations above the mean that a full step has: 95 % of all steps are smaller."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Everything that a decision may look at. `plan` is what was decided before."""

    config: RunConfig
    facts: Facts
    model: ModelFacts
    data: DataFacts
    plan: Plan

    @property
    def on_gpu(self) -> bool:
        """True where the run uses a GPU."""
        return self.plan.device.value == "cuda"

    @property
    def memory_bytes(self) -> int:
        """Memory of the device that the run may plan with."""
        if not self.on_gpu:
            return int(self.facts.memory_bytes // self.facts.processes_here * MEMORY_SHARE)
        gpu, allowed = self.facts.gpu, self.config.train.memory_fraction
        free = gpu.memory_bytes - gpu.taken_bytes
        return int(min(free, gpu.memory_bytes * (1.0 if allowed == "auto" else allowed)) * MEMORY_SHARE)

    @property
    def runtime_bytes(self) -> int:
        """What the process has on its device beside tensors: measured on a GPU that is there, else assumed."""
        if not self.on_gpu:
            return memory.CPU_RUNTIME_BYTES
        measured = self.facts.gpu.runtime_bytes
        return memory.RUNTIME_BYTES if measured is None else measured

    @property
    def samples_per_rank(self) -> int:
        """Samples of an optimiser step that fall to one process."""
        return math.ceil(self.step_samples / self.facts.world_size)

    @property
    def step_samples(self) -> int:
        """Samples of a full optimiser step; pairs that have fewer negatives, or fill no batch, make it smaller."""
        setting, data = self.config.step_samples, self.data
        return min(setting, math.ceil(data.samples_per_epoch / data.steps_per_epoch)) if data.pairs else setting

    @property
    def row_tokens(self) -> int:
        """Tokens of a row that a micro-batch has to hold: the longest there is, packed the longest allowed."""
        return self.data.limit_tokens if self.plan.packing.value else self.data.longest_tokens

    @property
    def useful_rows(self) -> int:
        """Rows of a micro-batch beyond which there is nothing left to put in, or the device is busy anyway."""
        most = self.samples_per_rank
        if self.plan.packing.value:
            fullest = self.fullest if self.engine.plans_shapes else 1.0
            most = min(most, math.ceil(most * self.data.mean_tokens * fullest / self.row_tokens))
            most = most if self.pack_limit is None else min(most, self.pack_limit // self.row_tokens)
        busy_tokens = GPU_TOKENS if self.on_gpu else CPU_TOKENS
        return max(self.least_rows, min(most, busy_tokens // self.row_tokens))

    @property
    def pack_limit(self) -> int | None:
        """Tokens of a pack beyond which the model's own code computes documents otherwise; None without end."""
        return None if self.engine.always_packs else self.model.pack_limit

    @property
    def least_rows(self) -> int:
        """Rows that a micro-batch holds at least: documents that are never split."""
        return self.config.objective_spec.documents_together

    def expected_bytes(
        self, *, micro_batch: int, checkpointing: bool | int, optimizer: str, cached_layers: int = 0
    ) -> dict[str, int]:
        """Bytes by component for a pass of `micro_batch` rows as long as the longest there can be.

        `checkpointing`: all layers, none, or for the fast and the fsdp backend how many.
        """
        batch = memory.peft.Batch(rows=micro_batch, length=self.row_tokens, is_packed=self.plan.packing.value)
        if self.mode.cuts_state:
            setting = self.sharded_setting(checkpointing, optimizer=optimizer)
            return sharded.parts(self.model, batch, setting=setting, sharing=self.sharing)
        if self.engine.plans_shapes:
            layers = self.model.layers * checkpointing if isinstance(checkpointing, bool) else checkpointing
            tokens = micro_batch * self.row_tokens
            return self.fast_memory.parts(Shape(tokens=tokens, checkpointed=layers, cached=cached_layers))
        return memory.peft.expected(
            self.model,
            batch,
            quantization=self.config.model.quantization,
            double_quant=self.config.model.double_quant,
            dtype=self.plan.compute_dtype.value,
            rank=self.config.lora.rank,
            optimizer=optimizer,
            checkpointing=bool(checkpointing),
            attention=self.plan.attention.value,
            has_dropout=self.config.lora.dropout > 0,
            runtime_bytes=self.runtime_bytes,
            on_gpu=self.on_gpu,
        )

    @property
    def sharing(self) -> sharded.Sharing:
        """How the processes share the model."""
        return sharded.Sharing(
            mode=self.plan.parallel.value, processes=self.facts.world_size, cpu_offload=self.plan.cpu_offload.value
        )

    def sharded_setting(self, checkpointing: bool | int, *, optimizer: str) -> sharded.Setting:
        """How the memory model of a shared model takes this context."""
        layers = self.model.layers * checkpointing if isinstance(checkpointing, bool) else checkpointing
        return sharded.Setting(
            quantization=self.config.model.quantization,
            double_quant=self.config.model.double_quant,
            dtype=self.plan.compute_dtype.value,
            rank=self.config.lora.rank,
            optimizer=optimizer,
            checkpointed=layers,
            attention=self.plan.attention.value,
            has_dropout=self.config.lora.dropout > 0,
            runtime_bytes=self.runtime_bytes,
        )

    @property
    def engine(self) -> engines.Engine:
        """The engine that trains."""
        return engines.of(self.plan.engine.value)

    @property
    def mode(self) -> engines.Mode:
        """How the processes share the model."""
        return engines.MODES[self.plan.parallel.value]

    def obstacle(self, cannot: engines.Cannot) -> str | None:
        """The first of these reasons that holds for the run, or None."""
        return obstacles.first(cannot, self.config, self.model, compute_dtype=self.plan.compute_dtype.value)

    @property
    def fast_memory(self) -> FastMemory:
        """The memory model of the fast engine for this context."""
        setting = Setting(
            quantization=self.config.model.quantization,
            double_quant=self.config.model.double_quant,
            dtype=self.plan.compute_dtype.value,
            rank=self.config.lora.rank,
            on_gpu=self.on_gpu,
            has_flash=self.has_flash,
            longest_tokens=self.data.longest_tokens,
            mean_tokens=self.data.mean_tokens,
            runtime_bytes=self.runtime_bytes,
        )
        return FastMemory(self.model, setting)

    @property
    def has_flash(self) -> bool:
        """Whether FlashAttention-2's kernels serve the fast engine: torch's own have no softcap, flash-attn's have."""
        has_kernels = self.on_gpu and self.facts.gpu.capability >= gpu_table.FIRST_FLASH
        if not has_kernels or self.plan.compute_dtype.value == "float32":
            return False
        return not self.model.capped_heads or self.plan.attention.value == "flash_attention_2"

    @property
    def shape(self) -> Shape:
        """The planned shape of the fast engine's passes."""
        plan = self.plan
        return Shape(
            tokens=plan.micro_batch.value * self.row_tokens,
            checkpointed=plan.checkpointed_layers.value,
            cached=plan.cached_layers.value,
        )

    @property
    def limits(self) -> Limits:
        """What the shape of the fast engine's passes keeps to."""
        train, cached = self.config.train, self.config.model.cache_weights
        return Limits(
            memory_bytes=self.memory_bytes,
            cache_bytes=self.memory_bytes if self.on_gpu else int(self.memory_bytes * CPU_CACHE_SHARE),
            checkpointed=None if train.checkpointing == "auto" else self.asked_layers(train.checkpointing),
            cached=None if cached == "auto" else cached,
        )

    def asked_layers(self, checkpointing: bool | int) -> int:
        """How many layers `train.checkpointing` asks for; ConfigError where there are not this many."""
        layers = self.model.layers
        if isinstance(checkpointing, bool):
            return layers * checkpointing
        if checkpointing > layers:
            raise ConfigError(
                f"train.checkpointing is {checkpointing}, and {self.model.name} has {layers} layers",
                hint=f"--set train.checkpointing={layers} (true), or less",
            )
        return checkpointing

    def fast_choice(self) -> Choice | None:
        """The shape of the fast engine's passes that is fastest of those that fit; None where none does."""
        setting = self.config.train.micro_batch
        return pass_shape.choose(
            self.fast_memory,
            rows=range(self.least_rows, self.useful_rows + 1) if setting == "auto" else (setting,),
            row_tokens=self.row_tokens,
            step_tokens=self.step_tokens,
            limits=self.limits,
            data=self.rows,
            rates=self.rates,
        )

    @property
    def step_tokens(self) -> float:
        """Tokens of an optimiser step that fall to one process, in the mean."""
        return self.samples_per_rank * self.data.mean_tokens

    def passes(self, budget: int) -> int:
        """Micro-steps of `budget` tokens at most that a full optimiser step takes."""
        return max(1, math.ceil(self.step_tokens * self.fullest / budget))

    @property
    def rows(self) -> throughput.Rows:
        """What the time of a pass hangs on, of the data."""
        data = self.data
        learned = data.supervised_tokens / max(1, data.tokens)
        return throughput.Rows(mean_tokens=data.mean_tokens, supervised_share=learned, fullest=self.fullest)

    @property
    def fullest(self) -> float:
        """Tokens of a full optimiser step over those of a mean one: packs are not quite full, and rows differ."""
        beyond_mean = self.data.longest_tokens / max(1.0, self.data.mean_tokens) - 1
        full_step = FULL_STEP * ROW_SPREAD / math.sqrt(self.samples_per_rank)
        return 1 + min(1.0, beyond_mean / ROW_SPREAD) * max(1 / PACKED_SHARE - 1, full_step)

    @property
    def rates(self) -> throughput.Rates:
        """What the device is assumed to sustain."""
        if not self.on_gpu:
            return throughput.CPU
        return throughput.rates_of(gpu_table.known_as(self.facts.gpu.name) or gpu_table.named(gpu_table.UNKNOWN_GPU))


def asked(name: str, value: Value) -> Decision[Value]:
    """A decision that the user took."""
    return Decision(name=name, value=value, why="set in the configuration")
