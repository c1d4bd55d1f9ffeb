"""How often metrics, evaluations and checkpoints happen, so that they do not dominate a short run."""

import math

from loradock.plan.context import Decision, Question

METRIC_LINES = 100
EVALUATION_SHARE = 0.1
FORWARD_SHARE = 1 / 3
CHECKPOINTS = 5
MOST_STEPS_BETWEEN_CHECKPOINTS = 500


def decide(question: Question) -> Decision:
    """Metrics at most every 10 steps, evaluations that cost at most a tenth of the training, about five checkpoints."""
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
    rows = question.data.validation_rows
    why = f"{-(-steps // save)} checkpoint(s) in {steps} steps; " + (
        f"evaluating {rows} rows every {evaluate} steps" if evaluate else "nothing is held out to evaluate"
    )
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
