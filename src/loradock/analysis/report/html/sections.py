"""What a report says of one run in words: rows of labels and values, taken from its record as far as it is known."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from loradock.analysis.report.html.differences import (
    CHECKED,
    last,
    leaves,
    mean_loss,
    peak_bytes,
    rate,
    text_of,
    timed,
    tokens_per_second,
)
from loradock.analysis.report.html.environment import Note, Rows, add
from loradock.analysis.report.html.runs import Run, at, listed, number, numbers
from loradock.plan.plan import shown
from loradock.text.amounts import duration_text, size_text

SCORE_NUMBERS = 3
"""Value, low and high."""


def standing(run: Run) -> str:
    """How the run ended, or where it is, in a sentence."""
    status = str(run.at("status", default="unknown"))
    step, total = number(run.status.get("step")), number(run.status.get("total_steps"))
    if status == "running":
        place = f" at step {step:,.0f}" if step is not None else ""
        of = f" of {total:,.0f}" if place and total else ""
        when = f"; last status {moment(run.status['time'])}" if run.status.get("time") else ""
        return f"running: {run.status.get('state') or 'setup'}{place}{of}{when}"
    code = run.at("exit_code")
    state = status if code in (None, 0) else f"{status} with exit code {code}"
    error = run.at("error")
    return f"{state}: {first_line(error)}" if error else state


def summary(run: Run) -> Rows:
    """The run in a dozen lines."""
    rows: Rows = [("How it ended", standing(run))]
    add(rows, "Started", moment(run.at("started")))
    add(rows, "Duration", duration(run))
    add(rows, "Model", model_line(run))
    add(rows, "Data", data_line(run))
    add(rows, "Adapter", adapter_line(run))
    add(rows, "Steps", steps_line(run))
    add(rows, "Training loss", ends_of_loss(run))
    add(rows, "Evaluation loss", from_to(numbers(run.evaluations, "loss")))
    add(rows, "Accuracy of the exam", exam_line(run))
    rows += [(f"Evaluated on {name}", scores) for name, scores in score_lines(run)]
    if (speed := tokens_per_second(run)) is not None:
        rows.append(("Throughput", f"{rate(speed)} real tokens a second of training"))
    if peak := peak_bytes(run):
        rows.append(("GPU memory", f"{size_text(int(peak))} reserved at most"))
    add(rows, "Slowed down", slowdowns(run))
    add(rows, "Checkpoints", f"{len(run.checkpoints)} written{left(run)}" if run.checkpoints else "")
    if run.section("fingerprint"):
        rows.append(("Reproduce this", f"loradock reproduce {shlex.quote(str(run.directory.absolute()))}"))
    return rows


def moment(value: Any) -> str:
    """A time of a record to the second, in UTC as recorded."""
    try:
        return f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M:%S} UTC"
    except (TypeError, ValueError):
        return ""


def duration(run: Run) -> str:
    """The whole time of the process, that of training and of the environment check."""
    total, training, checked = (timed(run, stage) for stage in ("total", "training", CHECKED))
    parts = [duration_text(total)] if total else []
    parts += [f"{duration_text(training)} of training"] if training else []
    parts += [f"{duration_text(checked)} of the environment check"] if checked else []
    return ", ".join(parts)


def model_line(run: Run) -> str:
    """Base model, with what is known of its shape."""
    name = run.at("base", "name") or run.at("config", "model", "name")
    facts = run.section("plan", "model")
    texts = [str(facts.get("architecture") or "")]
    texts += [f"{value:,.0f} weights" for value in numbers([facts], "parameters")]
    texts += [f"{value:,.0f} layers" for value in numbers([facts], "layers")]
    texts += [str(run.at("config", "model", "quantization", default=""))]
    details = ", ".join(part for part in texts if part)
    return f"{name} ({details})" if name and details else str(name or "")


def data_line(run: Run) -> str:
    """Sources, rows and tokens."""
    sources = [*listed(run.at("data", "sources")), *listed(run.at("config", "data", "sources"))]
    paths = dict.fromkeys(str(source["path"]) for source in sources if "path" in source)
    facts = run.section("plan", "data")
    texts = [f"{value:,.0f} rows trained" for value in numbers([facts], "train_rows")]
    texts += [f"{value:,.0f} held out" for value in numbers([facts], "validation_rows")]
    texts += [f"{value:,.0f} tokens" for value in numbers([facts], "tokens")]
    texts += [f"{value:,.0f} rows cut" for value in numbers([facts], "truncated_rows") if value]
    texts += [f"{value:,.0f} rows split" for value in numbers([facts], "split_rows") if value]
    texts += [f"{value:,.0f} rows dropped" for value in numbers([facts], "dropped_rows") if value]
    return "; ".join(part for part in (", ".join(paths), ", ".join(texts)) if part)


def adapter_line(run: Run) -> str:
    """LoRA's rank, alpha and targets."""
    lora = run.section("config", "lora")
    names = ("rank", "alpha", "dropout", "targets")
    return ", ".join(f"{name} {text_of(lora[name])}" for name in names if name in lora)


def steps_line(run: Run) -> str:
    """Steps made of steps planned."""
    steps = run.at("outcome", "steps") or last(numbers(run.train, "step"))
    planned = next((decision.get("value") for decision in run.decisions if decision["name"] == "steps"), None)
    if steps is None:
        return f"none of {planned} yet" if planned else ""
    ended = run.at("outcome", "ended")
    return f"{steps:,.0f}" + (f" of {planned:,}" if number(planned) else "") + (f" ({ended})" if ended else "")


def ends_of_loss(run: Run) -> str:
    """The mean training loss of the first and of the last steps: that of a single one is noise."""
    ends = [("first", mean_loss(run.train)), ("last", mean_loss(run.train[::-1]))]
    if len(run.train) == 1:
        return from_to(numbers(run.train, "loss"))
    texts = [f"{loss[0]:.4f} over the {end} {loss[1]:,} step{'s' * (loss[1] > 1)}" for end, loss in ends if loss]
    return ", ".join(texts)


def left(run: Run) -> str:
    """Which checkpoints still lie in the run directory."""
    return f"; left: {', '.join(run.kept)}" if run.kept else "; none is left"


def from_to(losses: Sequence[float]) -> str:
    """The first, last and lowest loss."""
    if not losses:
        return ""
    if len(losses) == 1:
        return f"{losses[0]:.4f}"
    return f"{losses[0]:.4f} at first, {losses[-1]:.4f} at last, {min(losses):.4f} at best"


def exam_line(run: Run) -> str:
    """What the model scored before and after training."""
    accuracy_before, accuracy_after = (number(run.at("exam", when, "accuracy")) for when in ("before", "after"))
    return (
        f"{accuracy_before:.1f} % before, {accuracy_after:.1f} % after"
        if accuracy_before is not None and accuracy_after is not None
        else ""
    )


def score_lines(run: Run) -> list[tuple[str, str]]:
    """Each task that `loradock evaluate` measured last: its score, the interval, and the gain over another model."""
    texts: list[tuple[str, str]] = []
    for task in listed(run.scores.get("tasks")):
        score, metric = object_at(task, "score"), str(task.get("metric"))
        ends = [value for key in ("value", "low", "high") for value in numbers([score], key)]
        if len(ends) == SCORE_NUMBERS:
            value, low, high = (scored(metric, interval_end) for interval_end in ends)
            text = f"{metric} {value} ({low} to {high}) of {score.get('rows')} rows"
            texts.append((str(task.get("task")), text + gain_line(run, str(task.get("task")), metric)))
    return texts


def gain_line(run: Run, task: str, metric: str) -> str:
    """The difference to the other model, where there was one."""
    paired = object_at(run.scores, "against", "tasks", task, "difference")
    gained, p = number(paired.get("difference")), number(paired.get("p"))
    if gained is None or p is None:
        return ""
    gain = f"{gained:+.4f}" if metric == "loss" else f"{100 * gained:+.1f} points"
    return f"; {gain} against the other model, p {p:.2g}"


def object_at(content: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The object under these keys; empty where there is none."""
    value = at(content, *path)
    return value if isinstance(value, Mapping) else {}


def scored(metric: str, value: float) -> str:
    """A score: nats of a loss, else percent."""
    return f"{value:.4f}" if metric == "loss" else f"{100 * value:.1f} %"


def slowdowns(run: Run) -> str:
    """Why the GPU was slower than it can be, and in how many of the samples."""
    counts = Counter(str(name) for sample in run.samples for name in names_of(sample.get("slowdowns")))
    return ", ".join(f"{name} in {count / len(run.samples):.0%} of the samples" for name, count in counts.most_common())


def names_of(value: Any) -> list[Any]:
    """A list, or nothing."""
    return value if isinstance(value, list) else []


def decisions(run: Run) -> list[tuple[str, str, str]]:
    """Every decision: name, value and reason."""
    return [
        (str(decision["name"]), shown(decision.get("value")), str(decision.get("why", "")))
        for decision in run.decisions
    ]


def alerts(run: Run) -> list[Note]:
    """What the monitor told while the run went on."""
    rows: list[Note] = []
    for alert in listed(run.at("alerts")):
        step = number(alert.get("step"))
        rows.append(
            Note(
                severity=str(alert.get("severity", "warning")),
                place=str(alert.get("name", "")) + (f" at step {step:,.0f}" if step is not None else ""),
                what=str(alert.get("what", "")),
                remedy=str(alert.get("remedy") or ""),
            )
        )
    return rows


def interruptions(run: Run) -> list[str]:
    """Earlier attempts, what this one continued from, and where GPU memory ran out."""
    texts = [
        f"attempt of {moment(attempt.get('started')) or 'unknown time'}: {attempt.get('status', 'unknown')}"
        + (f" ({first_line(attempt['error'])})" if attempt.get("error") else "")
        for attempt in listed(run.at("attempts"))
    ]
    if run.at("resumed_from"):
        texts.append(f"continued {moment(run.at('continued'))} from {run.at('resumed_from')}")
    texts += [
        f"CUDA out of memory ({shrink.get('why', 'unknown')}): back to step {shrink.get('step')} with "
        f"{shrink.get('decision')} {shrink.get('value')} instead of {shrink.get('before')}"
        for shrink in listed(run.at("shrunk"))
    ]
    return texts


def checkpoints(run: Run) -> list[tuple[str, str, str, str]]:
    """Step, name, seconds and time of every checkpoint that was written."""
    return [
        (
            f"{checkpoint['step']:,}",
            str(checkpoint.get("directory", "")).rsplit("/", 1)[-1],
            duration_text(seconds) if (seconds := number(checkpoint.get("seconds"))) is not None else "",
            moment(checkpoint.get("time")),
        )
        for checkpoint in run.checkpoints
    ]


def config(run: Run) -> list[tuple[str, str, str]]:
    """Every value of the configuration: key, value and where it came from."""
    origins = run.section("origins")
    return [(name, text_of(value), str(origins.get(name, ""))) for name, value in leaves(run.section("config")) if name]


def first_line(text: Any) -> str:
    """The first line of a text, without the `error: ` that a screen shows."""
    lines = str(text).strip().splitlines()
    return lines[0].removeprefix("error: ") if lines else ""


def is_bad(run: Run) -> bool:
    """Whether the run ended, and not well."""
    return run.at("status") in ("failed", "interrupted")
