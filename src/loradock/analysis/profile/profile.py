"""A profile: a short real training, what its steps, its trace and its preparation say, and the verdict."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from loradock.analysis import step_time
from loradock.analysis.profile import ceilings, flame, reading, roles, work
from loradock.analysis.profile import trace as traces
from loradock.analysis.profile.reading import Reading
from loradock.analysis.profile.recorder import Recorder, Window
from loradock.analysis.profile.verdict import Evidence, judge
from loradock.analysis.step_time import Breakdown
from loradock.config.load import Loaded
from loradock.config.schema import RunConfig
from loradock.errors import Interrupted, LoradockError, Stopped
from loradock.facts import Facts
from loradock.plan import planner
from loradock.plan.context import CPU_TOKENS
from loradock.plan.memory.widths import widths
from loradock.plan.plan import Plan
from loradock.process import signals
from loradock.training.context import View, opened
from loradock.training.run import Result, import_libraries, run
from loradock.training.run_dir.record import metrics

TRACE, FLAME, FLAME_DEVICE = "trace.json.gz", "flame.txt", "flame-device.txt"
BEFORE_TRAINING = ("model files and libraries", "data", "training library", "base model", "engine check")
"""The stages of a run that are over when training begins, as `stages` names them."""
EXPORT = "export"
"""The stage after training."""
NOT_COMPUTING = (roles.DATA, roles.EVALUATION, roles.SAVING, roles.LOGGING, roles.OPTIMIZER)
"""Roles outside the passes."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was seen: the run as it was asked for and planned, its steps without the profiler, and what was recorded."""

    config: RunConfig
    plan: Plan
    facts: Facts
    steps: Breakdown
    padding_share: float
    timings: Mapping[str, float]
    read: Reading


def profile(loaded: Loaded, *, facts: Facts, output: Path, window: Window, view: View) -> dict[str, Any]:
    """Train `window.total` steps, write trace and flame summaries into `output`, and return what was found.

    The run itself lies in a temporary folder in `output`, so that its checkpoints go to the same disk. Raises what a
    run raises.
    """
    recorder = Recorder(window, view=view)
    with tempfile.TemporaryDirectory(dir=output, prefix=".run-") as folder:
        try:
            import_libraries()
            around = opened(
                shortened(loaded, window),
                facts=facts,
                directory=Path(folder),
                view=recorder,
                env_check={"skipped": "loradock profile"},
            )
            result = run(around)
        except Stopped as stopped:
            raise Interrupted(f"{signals.requested() or 'a signal'} stopped the profile; nothing is kept") from stopped
        finally:
            recorder.close()
        files = written(recorder, output)
        view.stage("reading the trace")
        measured = seen(loaded.config, recorder, result, facts=facts, read=reading.of(traces.read(output / TRACE)))
    return content(measured, window) | {"files": files}


def shortened(loaded: Loaded, window: Window) -> Loaded:
    """The configuration for this many steps, with a metric line for each; what "auto" spreads over a run comes last."""
    config, total = loaded.config, window.total
    evaluation, checkpoints = config.evaluation, config.checkpoints
    if evaluation.every == "auto":
        evaluation = evaluation.model_copy(update={"every": total})
    if checkpoints.every == "auto":
        checkpoints = checkpoints.model_copy(update={"every": total})
    parts = {
        "output": None,
        "train": config.train.model_copy(update={"max_steps": total, "early_stopping": None}),
        "logging": config.logging.model_copy(update={"every": 1}),
        "evaluation": evaluation,
        "checkpoints": checkpoints,
    }
    return replace(loaded, config=config.model_copy(update=parts))


def written(recorder: Recorder, output: Path) -> dict[str, str]:
    """Write the trace and its flame summaries; returns their paths. LoradockError where nothing was recorded."""
    if recorder.profiler is None:
        raise LoradockError("the run ended before its steps could be recorded")
    recorder.profiler.export_chrome_trace(str(output / TRACE))
    trace = traces.read(output / TRACE)
    summaries = {FLAME: flame.of_host(trace)} | ({FLAME_DEVICE: flame.of_device(trace)} if trace.device else {})
    for name, stacks in summaries.items():
        (output / name).write_text(flame.collapsed(stacks), encoding="utf-8")
    return {"trace": str(output / TRACE)} | {name.split(".")[0]: str(output / name) for name in summaries}


def seen(config: RunConfig, recorder: Recorder, result: Result, *, facts: Facts, read: Reading) -> Measured:
    """Put together what the run tells. Its plan is made again for the run as it was asked for: cadence and steps."""
    plans = recorder.plan_made
    if plans is None:
        raise LoradockError("the run made no plan")
    plan = planner.make(config, facts=facts, model=plans.model, data=plans.data)
    lines = [line for line in result.metrics if recorder.window.is_clean(line["step"])]
    counted = [line["padding_share"] for line in lines if line["step"] > recorder.window.warmup_steps]
    return Measured(
        config=config,
        plan=plan,
        facts=facts,
        steps=clean_steps(lines, result, cadence=cadence(plan), warmup_steps=recorder.window.warmup_steps),
        padding_share=step_time.mean(counted),
        timings=result.record["timings_seconds"],
        read=read,
    )


def cadence(plan: Plan) -> dict[str, int]:
    """Steps between metric lines, evaluations and checkpoints; without evaluations one that costs nothing."""
    return {name: max(1, steps) for name, steps in asdict(plan.cadence.value).items()}


def clean_steps(
    lines: Sequence[Mapping[str, Any]], result: Result, *, cadence: Mapping[str, int], warmup_steps: int
) -> Breakdown:
    """The breakdown of the steps before and after those of the profiler."""
    events = {
        "evaluations": metrics(result.directory, "eval"),
        "checkpoints": metrics(result.directory, "checkpoint"),
        "cadence": cadence,
        "warmup_steps": warmup_steps,
    }
    runs = [[line for _, line in members] for _, members in groupby(enumerate(lines), lambda p: p[1]["step"] - p[0])]
    breakdowns = [breakdown for members in runs if (breakdown := step_time.of(members, **events))]
    steps = sum(breakdown.steps for breakdown in breakdowns)
    if not steps:
        raise LoradockError("the run ended before a step could be counted")
    return Breakdown(
        phases={
            name: sum(breakdown.phases[name] * breakdown.steps for breakdown in breakdowns) / steps
            for name in step_time.PHASES
        },
        tokens=sum(breakdown.tokens * breakdown.steps for breakdown in breakdowns) / steps,
        samples=sum(breakdown.samples * breakdown.steps for breakdown in breakdowns) / steps,
        steps=steps,
    )


def content(measured: Measured, window: Window) -> dict[str, Any]:
    """All that is reported, JSON-able; seconds are of a mean step without the profiler unless said otherwise."""
    steps, read, plan = measured.steps, measured.read, measured.plan
    setup = {name: measured.timings.get(name, 0.0) for name in BEFORE_TRAINING}
    training = steps.seconds * plan.steps.value
    parts = {**setup, "training": training, EXPORT: measured.timings.get(EXPORT, 0.0)}
    run_seconds = sum(parts.values())
    evidence = evidence_of(measured, training_share=training / run_seconds, preparing=setup["data"] / run_seconds)
    verdict = judge(evidence)
    slots = steps.tokens / (1 - measured.padding_share)
    return {
        "verdict": asdict(verdict),
        "device": evidence.device,
        "steps": {"warm_up": window.warmup_steps, "counted": steps.steps, "recorded": window.recorded},
        "step_seconds": steps.seconds,
        "tokens_per_second": steps.tokens_per_second,
        "padding_share": measured.padding_share,
        "timeline": [row(name, seconds, steps.seconds) for name, seconds in timeline(steps, read).items()],
        "run": {
            "steps": plan.steps.value,
            "seconds": run_seconds,
            "parts": [row(name, part, run_seconds) for name, part in parts.items()],
        },
        "busy_share": evidence.busy_share,
        "recorded_slowdown": read.window / steps.seconds,
        "passes": {"count": read.passes, "tokens": slots / max(1.0, read.passes), "small_share": evidence.small_share},
        "roles": [row(name, read.roles[name], sum(read.roles.values())) for name in roles.ROLES if name in read.roles],
        "operators": read.operators,
        "outside_operators_seconds": None if read.busy is not None else read.outside,
        "rates": {
            "flops": evidence.flops,
            "peak_flops": evidence.peak_flops,
            "bytes": evidence.bytes,
            "peak_bytes": evidence.peak_bytes,
            "source": evidence.source,
        },
    }


def evidence_of(measured: Measured, *, training_share: float, preparing: float) -> Evidence:
    """What the verdict is made from."""
    steps, read, plan, config = measured.steps, measured.read, measured.plan, measured.config
    device, dtype = plan.device.value, plan.compute_dtype.value
    ceiling = ceilings.of_device(device, facts=measured.facts, dtype=dtype)
    passes = max(1, round(read.passes))
    slots = steps.tokens / (1 - measured.padding_share)
    step_work = work.of_step(
        plan, config, facts=measured.facts, tokens=steps.tokens, padded_tokens=slots, passes=float(passes)
    )
    computing = {name: role for name, role in read.roles.items() if name not in NOT_COMPUTING}
    passing = max(1e-9, steps.phases["passes"])
    return Evidence(
        device=device,
        phases=steps.phases,
        cadence=cadence(plan),
        padding_share=measured.padding_share,
        busy_share=None if read.busy is None else min(1.0, read.busy / steps.seconds),
        small_share=smallness(computing, plan, dtype=dtype, slots=slots, passes=passes) if device == "cpu" else None,
        pass_tokens=slots / passes,
        passes=passes,
        training_share=training_share,
        preparing_share=preparing,
        preparing_seconds=measured.timings.get("data", 0.0),
        operations=read.operations,
        role_shares=computing,
        flops=step_work.flops / passing,
        bytes=step_work.bytes / passing,
        peak_flops=ceiling.flops,
        peak_bytes=ceiling.bytes,
        source=ceiling.source,
    )


def smallness(computing: Mapping[str, float], plan: Plan, *, dtype: str, slots: float, passes: int) -> float | None:
    """What part of the passes larger ones would save, by what is measured for products and elementwise operations.

    Weights are made dense once a pass, whatever its size; attention goes document by document, and would save nothing.
    None where a step is one pass.
    """
    tokens, most = max(1, round(slots / passes)), min(round(slots), CPU_TOKENS)
    if passes < 2 or most <= tokens:
        return None
    product, single = ceilings.smallness(
        "cpu",
        dtype,
        tokens=tokens,
        more_tokens=most,
        hidden=plan.model.hidden,
        inner=widths(plan.model, rank=1).inner,
    )
    spared = {roles.GEMM: product, roles.HEAD: product, roles.DEQUANTISE: 1 - tokens / most, roles.ATTENTION: 0.0}
    return sum(seconds * spared.get(role, single) for role, seconds in computing.items()) / sum(computing.values())


def timeline(steps: Breakdown, read: Reading) -> dict[str, float]:
    """Seconds of a step in their order; the passes are divided as they were in the recorded steps."""
    parts = read.parts or {"passes": 1.0}
    scale = steps.phases["passes"] / sum(parts.values())
    order = {name: parts[name] * scale for name in (*reading.ranges.PASSES, "passes") if name in parts}
    update_phases = {name: steps.phases[name] for name in step_time.PHASES if name not in ("data", "passes")}
    return {"data": steps.phases["data"], **order, **update_phases}


def row(name: str, seconds: float, total: float) -> dict[str, Any]:
    """One line of a table with shares."""
    return {"name": name, "seconds": seconds, "share": seconds / total if total else 0.0}
