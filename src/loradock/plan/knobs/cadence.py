"""How often metrics, evaluations and checkpoints happen, so that they do not dominate a short run."""

import math

from loradock.plan.context import Context
from loradock.plan.plan import Cadence, Decision
from loradock.plan.trial import Trial

METRIC_LINES = 100
EVALUATION_SHARE = 0.1
FORWARD_SHARE = 1 / 3
CHECKPOINTS = 5
MOST_STEPS_BETWEEN_CHECKPOINTS = 500
TIMES = 10
FEWEST = 10
"""Checkpoints of a run, whatever they cost."""


def decide(context: Context) -> Decision[Cadence]:
    """Metrics at most every 10 steps, evaluations that cost at most a tenth of the training, about five checkpoints."""
    config = context.config
    steps = context.plan.steps.value
    log = config.logging.every if config.logging.every != "auto" else max(1, min(10, steps // METRIC_LINES))
    evaluate = evaluation_interval(context, steps)
    save = config.checkpoints.every
    if save == "auto":
        save = max(1, min(MOST_STEPS_BETWEEN_CHECKPOINTS, math.ceil(steps / CHECKPOINTS)))
        if config.checkpoints.keep_best is True and evaluate:
            save = evaluate
    value = Cadence(log=log, evaluate=evaluate, save=save)
    rows = context.data.validation_rows
    why = f"{-(-steps // save)} checkpoint(s) in {steps} steps; " + (
        f"evaluating {rows} rows every {evaluate} steps" if evaluate else "no validation rows"
    )
    return Decision(name="cadence", value=value, why=why)


def evaluation_interval(context: Context, steps: int) -> int:
    """Steps between evaluations; 0 without a validation part. A forward pass is a third of a training pass."""
    if not context.data.validation_rows:
        return 0
    setting = context.config.evaluation.every
    if setting != "auto":
        return setting
    cost_samples = context.data.validation_rows * FORWARD_SHARE
    least = math.ceil(cost_samples / EVALUATION_SHARE / context.config.step_samples)
    return min(steps, max(1, least, steps // 10))


def propose(context: Context) -> tuple[Trial, ...]:
    """Metric lines, evaluations and checkpoints a tenth as often."""
    return (*_logging_less_often(context), *_evaluation_less_often(context), *_checkpoints_less_often(context))


def _logging_less_often(context: Context) -> tuple[Trial, ...]:
    """Ten times the steps between lines, at most one line a run."""
    current, steps = context.plan.cadence.value.log, context.plan.steps.value
    interval = min(TIMES * current, steps)
    if interval <= current:
        return ()
    return (
        Trial(
            name="logging-x10",
            title=f"a metric line every {interval} steps instead of every {current}",
            settings=(f"logging.every={interval}",),
            cause="writing metrics too often",
            phase="logging",
        ),
    )


def _evaluation_less_often(context: Context) -> tuple[Trial, ...]:
    """Ten times the steps between evaluations, where there are any and more than one; early stopping keeps its own."""
    config = context.config
    current, steps = context.plan.cadence.value.evaluate, context.plan.steps.value
    interval = min(TIMES * current, steps // (1 + (config.train.early_stopping or 0)))
    if interval <= current:
        return ()
    is_judge = config.keeps_best or config.train.early_stopping is not None
    return (
        Trial(
            name="evaluation-x10",
            title=f"an evaluation every {interval} steps instead of every {current}",
            settings=(f"evaluation.every={interval}",),
            cause="evaluating too often",
            phase="evaluation",
            price="the best checkpoint, or early stopping, is evaluated less often" if is_judge else "",
            accuracy_risk="low" if is_judge else "none",
        ),
    )


def _checkpoints_less_often(context: Context) -> tuple[Trial, ...]:
    """Ten times the steps between checkpoints, while a run has ten: one that is cut off loses more otherwise."""
    current, steps = context.plan.cadence.value.save, context.plan.steps.value
    interval = min(TIMES * current, steps // FEWEST)
    if interval <= current:
        return ()
    return (
        Trial(
            name="checkpoints-x10",
            title=f"a checkpoint every {interval} steps instead of every {current}",
            settings=(f"checkpoints.every={interval}",),
            cause="saving checkpoints too often",
            phase="saving",
            stability_risk="low",
        ),
    )
