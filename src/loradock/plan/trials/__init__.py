"""The trials, in the order in which `diagnose` and `plan` show them. To add one: a new file, and its line here."""

from __future__ import annotations

from loradock.errors import ConfigError, EnvironmentUnfit, OutOfMemory
from loradock.plan.trials import (
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
from loradock.plan.trials.base import Baseline, Propose, Trial
from loradock.plan.trials.changed import AtLength, changed

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


UNDECIDED = ("lora.", "data.", "model.quantization")
"""Keys that act although no decision is about them."""


def proposed(baseline: Baseline) -> tuple[Trial, ...]:
    """Every trial that makes sense for a baseline, the first of those that come to the same plan.

    One that memory is not expected to hold is among them.
    """
    return tuple(trial for trial, _ in outcomes(baseline))


def outcomes(baseline: Baseline, *, at_length: AtLength | None = None) -> list[tuple[Trial, Baseline | OutOfMemory]]:
    """Each of them with what it comes to; `at_length` as in `changed`."""
    seen = {_identity(baseline, ())}
    found: list[tuple[Trial, Baseline | OutOfMemory]] = []
    for trial in (each for propose in TRIALS for each in propose(baseline)):
        try:
            after = changed(baseline, trial.settings, at_length=at_length)
            identity = _identity(after, trial.settings)
        except OutOfMemory as full:
            after, identity = full, trial.name
        except (ConfigError, EnvironmentUnfit):
            continue
        if identity not in seen:
            seen.add(identity)
            found.append((trial, after))
    return found


def _identity(of: Baseline, settings: tuple[str, ...]) -> str:
    """What a change comes to: every decision, and the settings that none is about."""
    values = [each.value for each in of.plan.decisions]
    return repr((values, [setting for setting in settings if setting.startswith(UNDECIDED)]))
