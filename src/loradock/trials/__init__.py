"""The trials, in the order in which `diagnose` and `plan` show them. To add one: a new file, and its line here."""

from __future__ import annotations

from loradock.errors import ConfigError, EnvironmentUnfit, OutOfMemory
from loradock.trials import (
    attention,
    checkpointing,
    checkpoints,
    compilation,
    cuda_graphs,
    data_workers,
    engine,
    evaluation,
    logging,
    lora_rank,
    lora_targets,
    micro_batch,
    optimizer,
    packing,
    precision,
    sequence_length,
    synthetic_data,
    weight_cache,
)
from loradock.trials.base import Baseline, Propose, Trial
from loradock.trials.changed import changed

TRIALS: tuple[Propose, ...] = (
    micro_batch.propose,
    sequence_length.propose,
    packing.propose,
    attention.propose,
    checkpointing.propose,
    optimizer.propose,
    lora_rank.propose,
    lora_targets.propose,
    precision.propose,
    data_workers.propose,
    synthetic_data.propose,
    compilation.propose,
    logging.propose,
    evaluation.propose,
    checkpoints.propose,
    weight_cache.propose,
    cuda_graphs.propose,
    engine.propose,
)


def proposed(baseline: Baseline) -> tuple[Trial, ...]:
    """Every trial that makes sense for a baseline. One that memory is not expected to hold is among them."""
    return tuple(trial for propose in TRIALS for trial in propose(baseline) if can_be(baseline, trial))


def can_be(baseline: Baseline, trial: Trial) -> bool:
    """Whether the configuration and the plan accept the change; too little memory is a result, and no refusal."""
    try:
        changed(baseline, trial.settings)
    except (ConfigError, EnvironmentUnfit):
        return False
    except OutOfMemory:
        return True
    return True
