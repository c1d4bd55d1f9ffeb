"""What could be changed in a plan: the trials of all knobs, and what each comes to, planned again. Pure."""

from __future__ import annotations

from pkgutil import iter_modules

from loradock.errors import ConfigError, EnvironmentUnfit, OutOfMemory
from loradock.plan import knobs
from loradock.plan.changed import AtLength, changed
from loradock.plan.context import Context
from loradock.plan.knobs import knob
from loradock.plan.trial import Trial

FIRST = (
    "micro_batch",
    "max_length",
    "packing",
    "attention",
    "checkpointed_layers",
    "optimizer",
    "lora_rank",
    "lora_targets",
    "compute_dtype",
    "dataloader",
)
"""The knobs whose trials `diagnose` and `plan` show first; the others follow by name."""
UNDECIDED = ("lora.", "data.", "model.quantization", "preference.")
"""Keys that act although no decision is about them."""


def proposed(context: Context) -> tuple[Trial, ...]:
    """Every trial that makes sense for a plan, the first of those that come to the same one.

    One that memory is not expected to hold is among them.
    """
    return tuple(trial for trial, _ in outcomes(context))


def outcomes(context: Context, *, at_length: AtLength | None = None) -> list[tuple[Trial, Context | OutOfMemory]]:
    """Each of them with what it comes to; `at_length` as in `changed`."""
    identities = {_identity(context, ())}
    results: list[tuple[Trial, Context | OutOfMemory]] = []
    for trial in (trial for name in names() for trial in knob(name).propose(context)):
        try:
            changed_context = changed(context, trial.settings, at_length=at_length)
            identity = _identity(changed_context, trial.settings)
        except OutOfMemory as full:
            changed_context, identity = full, trial.name
        except (ConfigError, EnvironmentUnfit):
            continue
        if identity not in identities:
            identities.add(identity)
            results.append((trial, changed_context))
    return results


def names() -> list[str]:
    """All knobs, in the order in which their trials are shown."""
    modules = sorted({module.name for module in iter_modules(knobs.__path__)} - set(FIRST))
    return [*FIRST, *modules]


def _identity(of: Context, settings: tuple[str, ...]) -> str:
    """What a change comes to: every decision, and the settings that none is about."""
    values = [decision.value for decision in of.plan.decisions]
    return repr((values, [setting for setting in settings if setting.startswith(UNDECIDED)]))
