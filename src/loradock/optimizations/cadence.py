"""How often metrics, evaluations and checkpoints happen, so that they do not dominate a short run."""

import math

from loradock.optimizations.base import Decision, Question

METRIC_LINES = 100
EVALUATION_SHARE = 0.1
FORWARD_SHARE = 1 / 3
CHECKPOINTS = 5
MOST_STEPS_BETWEEN_CHECKPOINTS = 500


def decide(question: Question) -> Decision:
    """About 100 metric lines, evaluations that cost at most a tenth of the training, about five checkpoints."""
    config = question.config
    steps = question.decided["steps"]
    log = config.logging.every if config.logging.every != "auto" else max(1, min(10, steps // METRIC_LINES))
    evaluate = evaluation_interval(question, steps)
    save = config.checkpoints.every
    if save == "auto":
        save = max(1, min(MOST_STEPS_BETWEEN_CHECKPOINTS, math.ceil(steps / CHECKPOINTS)))
        if config.checkpoints.keep_best and evaluate:
            save = evaluate
    value = {"log": log, "evaluate": evaluate, "save": save}
    why = "asked for where asked; else 100 metric lines, evaluation at most a tenth of the time, five checkpoints"
    return Decision(name="cadence", value=value, why=why)


def evaluation_interval(question: Question, steps: int) -> int:
    """Steps between evaluations; 0 without a validation part. A forward pass is a third of a training pass."""
    if not question.data.validation_rows:
        return 0
    wanted = question.config.evaluation.every
    if wanted != "auto":
        return wanted
    cost_samples = question.data.validation_rows * FORWARD_SHARE
    least = math.ceil(cost_samples / EVALUATION_SHARE / question.config.train.global_batch)
    return min(steps, max(1, least, steps // 10))
