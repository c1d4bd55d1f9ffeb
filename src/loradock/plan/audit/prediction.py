"""Seconds that an optimiser step of a plan is expected to take, for either engine, by what takes them.

The passes come from the speed model, evaluations from arithmetic, and checkpoints and the host's time from this
project's own measurements. They are to be compared with one another, not with a clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from loradock.facts import DataFacts
from loradock.plan import planner, throughput
from loradock.plan.context import ROW_SPREAD, Context
from loradock.plan.knobs import held_passes, reference
from loradock.plan.knobs.cadence import FORWARD_SHARE
from loradock.plan.memory.widths import widths

HOST = "measured: bench/results/host/dispatch.md"
SAVING = "measured: bench/results/checkpoint.md"
PEFT_CHECKPOINTED_SECONDS = (0.2571 - 0.1307) / 32
"""What a layer that is recomputed costs the host beyond a plain one."""
PEFT_FORWARD_KERNELS_SHARE = 96 / 314
SAVING_SECONDS, SAVING_SECONDS_A_BYTE = 0.006, (0.0446 - 0.006) / 298_500_000
"""That one checkpoint stops the steps for, on a shared CPU; it is written beside them."""
COMMIT_SECONDS, COMMIT_SECONDS_A_BYTE = 0.034, (1.039 - 0.041) / 298_500_000
"""Until it is committed; as it was written in the step, and at most so long beside it."""
CHECKPOINT_BYTES_A_WEIGHT = 12
"""float32 value and two moments."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Mean seconds of an optimiser step: its `passes`, and what `evaluation` and `saving` add over their cadence.

    `host` of them are waiting for the host to launch kernels.
    """

    passes: float
    host: float
    evaluation: float
    saving: float

    @property
    def step(self) -> float:
        """Seconds of a step, all in all."""
        return self.passes + self.evaluation + self.saving


def has_rates(baseline: Context) -> bool:
    """Whether the model knows the speed of the plan's products: of 16-bit ones on a CPU only the processor knows."""
    return baseline.plan.device.value == "cuda" or baseline.plan.compute_dtype.value == "float32"


def tokens_per_second(baseline: Context) -> float:
    """Real tokens a second of one process, evaluations and checkpoints counted: what gains are ratios of."""
    return baseline.step_tokens / predicted(baseline).step


def predicted(baseline: Context) -> Prediction:
    """The prediction for a plan on its machine."""
    forwards = 1 + FORWARD_SHARE * (held_passes.run_twice(baseline) + reference.plain_passes(baseline))
    device, host = (forwards * part for part in (_fast(baseline) if baseline.engine.plans_shapes else _peft(baseline)))
    waiting = max(0.0, host - device)
    cadence, passes = baseline.plan.cadence.value, device + waiting
    forward = passes * FORWARD_SHARE * baseline.data.validation_rows / baseline.config.step_samples
    adapters = baseline.model.adapter_parameters(baseline.config.lora.rank)
    saving = SAVING_SECONDS + SAVING_SECONDS_A_BYTE * CHECKPOINT_BYTES_A_WEIGHT * adapters
    return Prediction(
        passes=passes,
        host=waiting,
        evaluation=forward / cadence.evaluate if cadence.evaluate else 0.0,
        saving=saving / cadence.save,
    )


def run_seconds(baseline: Context) -> float:
    """Seconds of all steps of the run."""
    return predicted(baseline).step * baseline.plan.steps.value


def padded_tokens(data: DataFacts, rows: int) -> float:
    """Tokens of the longest of `rows` rows drawn at random, which all of them are padded to.

    The mean of the maximum of exponential draws (mean x the harmonic number), its spread scaled to that assumed of rows
    (`ROW_SPREAD`): twice the mean for 8 rows.
    """
    harmonic = sum(1 / count for count in range(1, rows + 1))
    return min(float(data.longest_tokens), data.mean_tokens * (1 + ROW_SPREAD * (harmonic - 1)))


def _fast(baseline: Context) -> tuple[float, float]:
    """Seconds of the device and of the host."""
    rate = planner.tokens_per_second(baseline.plan, baseline.config, facts=baseline.facts)
    device = baseline.step_tokens / rate
    if not baseline.on_gpu or baseline.plan.cuda_graphs.value:
        return device, 0.0
    shape = baseline.shape
    return device, baseline.passes(shape.tokens) * throughput.fast_host_seconds(baseline.fast_memory.widths, shape)


def _peft(baseline: Context) -> tuple[float, float]:
    """The same for the peft backend. The model has full checkpointing: without it the second forward is taken off."""
    plan, data = baseline.plan, baseline.data
    wide = widths(baseline.model, rank=baseline.config.lora.rank)
    if plan.packing.value:
        passes = plan.accumulation.value
        slots = baseline.step_tokens / passes
        attended = data.mean_tokens if plan.attention.value == "flash_attention_2" else 2 * slots  # a mask hides, only
    else:
        rows = min(plan.micro_batch.value, baseline.samples_per_rank)
        passes = math.ceil(baseline.samples_per_rank / rows)
        attended = padded_tokens(data, rows)
        slots = baseline.samples_per_rank / passes * attended
    parts = throughput.peft_seconds(
        wide,
        padded_tokens=slots,
        rows=throughput.Rows(mean_tokens=attended, supervised_share=1.0),
        rates=baseline.rates,
        dtype=plan.compute_dtype.value,
        has_dropout=baseline.config.lora.dropout > 0,
    )
    parts.pop("waiting for the host")
    host = throughput.peft_host_seconds(wide) if baseline.on_gpu else 0.0
    if not baseline.config.model.storage.is_quantised:
        parts["dequantise"] = 0.0
    if not plan.checkpointing.value:
        copies = throughput.PEFT_FORWARD_COPIES / (2 * throughput.PEFT_FORWARD_COPIES + throughput.PEFT_BACKWARD_COPIES)
        second = {"products": 1 / 3, "dequantise": 1 / 3, "attention": 1 / 4.5, "traffic": copies, "dropout": 1 / 3}
        second["kernels"] = PEFT_FORWARD_KERNELS_SHARE
        parts = {name: seconds * (1 - second.get(name, 0.0)) for name, seconds in parts.items()}
        host = max(0.0, host - PEFT_CHECKPOINTED_SECONDS * wide.layers)
    return passes * sum(parts.values()), passes * host
