"""What `train` shows: the plan, one line a metric, the summary; as text and tables that the command prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from loradock.facts import HALF_BYTES, UNREACHABLE_SHARE, ModelFacts
from loradock.plan.context import Decision
from loradock.plan.plan import Plan, shown
from loradock.text.amounts import duration_text, size_text
from loradock.training.events import EARLY_STOP, EvalResult, Shrunk, StepResult

LOUD_SHARE = 0.1
WIDE_COLUMNS, VALUE_COLUMNS = 120, 40


def plan_table(plan: Plan) -> RenderableType:
    """Every decision with its reason: beside the value, or below it where there are few columns."""
    return PlanTable(plan)


@dataclass(frozen=True)
class PlanTable:
    """The table of decisions, which looks at how wide it may be."""

    plan: Plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """What rich asks for."""
        is_wide = options.max_width >= WIDE_COLUMNS
        table = Table(title="plan", title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(max_width=VALUE_COLUMNS if is_wide else None)
        if is_wide:
            table.add_column(style="dim", ratio=1)
        for decision in (decision for decision in self.plan.decisions if decision.is_shown):
            value = shown(decision.value)
            cells = [Text(value), Text(decision.why)] if is_wide else [Text(f"{value}\n").append(decision.why, "dim")]
            table.add_row(decision.name, *cells)
        yield table


def memory_table(plan: Plan) -> Table:
    """Expected bytes by component."""
    table = Table(title="memory expected", title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for part, size in plan.memory_bytes.items():
        table.add_row(part, size_text(size), style="bold" if part == "total" else "")
    return table


def left_out_line(model: ModelFacts) -> str:
    """The parts of the published model that are not its language model, and what they would have taken."""
    count = sum(part.parameters for part in model.left_out)
    names = ", ".join(part.name for part in model.left_out)
    return (
        f"left out: {names}: rows are text, so {count:,} weights are neither loaded nor adapted "
        f"({size_text(count * HALF_BYTES)} in 16 bits)"
    )


def experts_line(model: ModelFacts) -> str:
    """How many experts there are, how much a token uses, and whether they get adapters, with the reason."""
    matrices = model.experts
    layers = len({matrix.name.rpartition(".")[0] for matrix in matrices})
    most = max(matrix.count for matrix in matrices)
    uses = (
        f"{matrices[0].active} for a token: {model.active_parameters:,} of {model.reached_parameters:,} inner weights"
    )
    if model.expert_targets:
        adapters = f"an adapter on {len(model.expert_targets)} of {len(matrices)} matrices of each expert"
    else:
        adapters = "no adapter on them, which lora.targets=[all-linear,experts] gives them"
    names = (
        f"; nor on {', '.join(model.expert_names)}, names that PEFT reads as experts here" if model.expert_names else ""
    )
    return f"experts: {most} in each of {layers} layers, {uses}; {adapters}{names}; routers are frozen"


def plan_lines(plan: Plan) -> list[str]:
    """Model and data in sentences."""
    model, data = plan.model, plan.data
    adapters = f"adapter on {len(model.targets)} of {len(model.linears)} linear layers"
    weighted = (
        f", {data.epoch_tokens:,} an epoch by the sources' weights" if data.epoch_tokens not in (0, data.tokens) else ""
    )
    tokens = f"{data.tokens:,} tokens ({data.supervised_tokens:,} learned{weighted})"
    lengths = f"longest {data.longest_tokens}, mean {data.mean_tokens:.0f}"
    parts = "answers" if data.together > 1 else "texts" if data.pairs else "rows"
    samples = "samples" if data.split_rows else parts
    held_out = f"{data.validation_rows:,} {parts} held out"
    lines = [
        f"model: {model.name} ({model.architecture}, {model.parameters:,} weights, {model.layers} layers); {adapters}",
        f"data: {data.train_rows:,} {samples}, {tokens}, {lengths}; {held_out}",
    ]
    if model.left_out:
        lines.insert(1, left_out_line(model))
    if model.stored_as:
        lines.insert(1, f"base: {model.stored_as} in its files, made dense one matrix at a time")
    elif model.is_prequantised:
        share = model.dense_parameters / model.reached_parameters
        dense = f"; {share:.1%} of its inner weights are in 16 bit there" if model.dense_parameters else ""
        lines.insert(1, f"base: NF4, as its files hold it; nothing is quantised again{dense}")
    if model.experts:
        lines.insert(1, experts_line(model))
    if model.unreachable_share > UNREACHABLE_SHARE:
        share = f"{model.unreachable_share:.0%} of the inner weights"
        lines.insert(1, f"warning: {share} get no adapter: they are outside linear layers ({model.unreachable_words})")
    if data.split_rows:
        lost = (
            f"; {data.lost_tokens:,} tokens of windows without an answer are not trained on" if data.lost_tokens else ""
        )
        lines.append(
            f"over-long rows: {data.split_rows:,} split into windows of at most {data.limit_tokens:,} tokens{lost}"
        )
    if data.truncated_rows or data.dropped_rows:
        loud = "warning: " if data.lost_tokens > LOUD_SHARE * (data.tokens + data.lost_tokens) else ""
        lines.append(
            f"{loud}over-long rows: {data.truncated_rows:,} cut, {data.dropped_rows:,} dropped; "
            f"{data.lost_tokens:,} tokens are not trained on (data.max_length, data.long_rows)"
        )
    return lines


def decision_line(decision: Decision) -> str:
    """A decision of the engine's own, in one line."""
    return f"{decision.name}: {shown(decision.value)} ({decision.why})"


def metric_line(result: StepResult, total_steps: int) -> str:
    """A metric line for a terminal or a log."""
    memory = f"  {size_text(result.memory_bytes)}" if result.memory_bytes else ""
    parts = "".join(f"  {name} {value:.4f}" for name, value in result.parts.items())
    remaining = duration_text((total_steps - result.step) / result.steps_per_second)
    return (
        f"step {result.step}/{total_steps}  loss {result.loss:.4f}{parts}  lr {result.learning_rate:.2e}  "
        f"grad {result.grad_norm:.3f}  {result.tokens_per_second:,.0f} tokens/s  "
        f"{result.samples_per_second:.3g} samples/s  {remaining} left{memory}"
    )


def evaluation_line(result: EvalResult) -> str:
    """An evaluation line."""
    metrics = "".join(f"  {name} {value:.3f}" for name, value in result.metrics.items())
    return f"step {result.step}  evaluation loss {result.loss:.4f}{metrics}{by_name(result.losses)}"


def by_name(losses: Mapping[str, float]) -> str:
    """The loss of each set that has a name, in brackets; empty where none has."""
    return f"  ({', '.join(f'{name} {loss:.4f}' for name, loss in losses.items())})" if losses else ""


def shrunk_line(event: Shrunk) -> str:
    """The GPU was full, and how the run continues."""
    return (
        f"warning: CUDA out of memory ({event.why}); back to step {event.step} with {event.decision} {event.value} "
        f"instead of {event.before}; the global batch is unchanged"
    )


def dtype_line(dtypes: dict[str, str]) -> str:
    """The dtypes that really came out."""
    return "dtypes: " + ", ".join(f"{part} {dtype}" for part, dtype in dtypes.items())


def summary(content: dict[str, Any], metrics: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> list[str]:
    """How the run ended, in a few lines."""
    outcome, timings = content.get("outcome") or {}, content.get("timings_seconds") or {}
    training, total = timings.get("training", 0.0), timings.get("total", 0.0)
    duration = (
        f"{total:.0f} s, {training:.0f} s of them training" if total > training else f"{training:.0f} s of training"
    )
    if checkpoint := content.get("resumed_from"):
        duration = f"{duration}, since {checkpoint}"
    lines = [f"finished: {outcome['steps']} steps ({outcome['ended']}) in {duration}"] if outcome else ["finished"]
    if metrics:
        tokens, spent = (sum(line.get(name, 0.0) for line in metrics) for name in ("tokens", "seconds"))
        rate = tokens / max(1e-9, spent)
        lines.append(f"loss {metrics[0]['loss']:.4f} -> {metrics[-1]['loss']:.4f}, {rate:,.0f} tokens/s")
    if evaluations:
        last = evaluations[-1]
        losses = {name.removeprefix("loss_"): loss for name, loss in last.items() if name.startswith("loss_")}
        perplexity = f", perplexity {last['perplexity']:.3f}" if "perplexity" in last else ""
        lines.append(f"evaluation loss {last['loss']:.4f}{perplexity}{by_name(losses)}")
    if best_step := outcome.get("best_step"):
        (best,) = [line["loss"] for line in evaluations if line["step"] == best_step][-1:] or [None]
        lines.append(f"exported: the best checkpoint, step {best_step}" + (f", loss {best:.4f}" if best else ""))
    elif outcome.get("ended") == EARLY_STOP:
        lines.append(f"exported: the last step, {outcome['steps']}; the best is not kept (checkpoints.keep_best=false)")
    return lines
