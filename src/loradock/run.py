"""One run, from the configuration to the adapter. Read `execute` from top to bottom: it is the way of the data.

config + facts -> base model -> rows -> plan -> 4-bit base + adapter -> engine -> adapter directory, all of it recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from loradock import directory as directories
from loradock import plan as plans
from loradock.config.load import Loaded
from loradock.config.schema import RunConfig
from loradock.data.corpus import prepare_corpus
from loradock.engine import choose, isolation, ranks
from loradock.engine.base import Dtypes, Engine, EvalResult, Event, Job, Outcome, Saved, StepResult
from loradock.errors import Interrupted, LoradockError
from loradock.facts import Facts
from loradock.model import adapters, export, load, shape, source, tokenizer
from loradock.record import RunRecord
from loradock.report import card, curve
from loradock.trackers import open_all

Exam = Callable[[Any, Any], dict[str, Any]]
"""(model, tokenizer) -> what was scored; held before and after training."""


class View(Protocol):
    """What a person watches. Every method is called on rank 0 only."""

    def note(self, text: str) -> None:
        """One line of text."""

    def stage(self, text: str) -> None:
        """A stage begins."""

    def prepared_rows(self, rows: int, tokens: int) -> None:
        """Rows and tokens prepared so far."""

    def plan(self, plan: plans.Plan) -> None:
        """The plan was made."""

    def event(self, event: Event) -> None:
        """Something happened in training."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run."""

    directory: Path
    adapter: Path
    outcome: Outcome
    record: dict[str, Any]
    metrics: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]


def execute(
    loaded: Loaded,
    *,
    facts: Facts,
    directory: Path,
    resume: bool,
    view: View,
    exam: Exam | None = None,
    env_check: dict[str, Any] | None = None,
) -> Result:
    """Run it all; raises LoradockError, with run.json telling how far it came, `env_check` in it."""
    record = RunRecord(directory, config=loaded.config, origins=loaded.origins, facts=facts)
    record.put(env_check=env_check)
    try:
        result = steps_of(loaded.config, facts=facts, record=record, resume=resume, view=view, exam=exam)
    except (Exception, KeyboardInterrupt) as error:
        ended = as_loradock_error(error, directory)
        status = "interrupted" if isinstance(ended, Interrupted) else "failed"
        record.end(status, exit_code=ended.exit_code, error=str(ended))
        raise ended from error
    record.end("finished", exit_code=0)
    return result


def as_loradock_error(error: BaseException, directory: Path) -> LoradockError:
    """What ended a run, as an error with an exit code; one that nobody foresaw is a bug (70) and keeps its type."""
    if isinstance(error, LoradockError):
        return error
    if isinstance(error, KeyboardInterrupt):
        hint = f"loradock train --resume --output {directory} continues from the last checkpoint"
        return Interrupted("stopped by a signal", hint=hint)
    if isinstance(error, OSError):
        return directories.storage_error(error, Path(error.filename or directory))
    return LoradockError(f"unexpected {type(error).__name__}: {error}", hint="report this with run.json")


def steps_of(
    config: RunConfig, *, facts: Facts, record: RunRecord, resume: bool, view: View, exam: Exam | None
) -> Result:
    """The stages of a run in order; each is timed and recorded."""
    directory = record.directory
    resume_from = directories.last_checkpoint(directory) if resume else None
    if resume_from:
        record.rewind(directories.step_of(resume_from))
        record.put(resumed_from=resume_from.name)
    with stage("model files and libraries", record, view):
        base = source.find(config.model)
        words = tokenizer.open_tokenizer(base)
        model_facts = shape.inspect(base, config)
        max_length = shape.longest_row(config.data.max_length, model_facts)
        record.hash_weights(base.weight_files)
        record.put(
            name=directory.name, base={"name": base.name, "revision": base.revision, "path": str(base.directory)}
        )
    with stage("data", record, view):
        data = ranks.first_then_all(
            facts,
            lambda: prepare_corpus(
                config, tokenizer=words, max_length=max_length, facts=facts, progress=view.prepared_rows
            ),
        )
        record.put(data=data.as_dict())
    plan = plans.make(config, facts=facts, model=model_facts, data=data.facts)
    with stage("training library", record, view):
        engine, decision = choose(config.engine)
        view.note(f"engine: {decision.value} ({decision.why})")
    record.put(plan=plan.as_dict(), engine=asdict(decision))
    view.plan(plan)
    with stage("base model", record, view):
        whole, coverage = load.load(base, config.model, plan=plan, local_rank=facts.local_rank)
        model = adapters.attach(whole, config, base=base)
        initial = export.save_initial(model, directory, init=config.lora.init)
        view.note(str(coverage))
        record.put(coverage={**asdict(coverage), "missed": list(coverage.missed)})
    job = Job(
        config=config,
        plan=plan,
        model=model,
        tokenizer=words,
        steps=data.steps(plan, facts=facts),
        evaluation=data.evaluation(plan, facts=facts),
        directory=directory,
        resume_from=resume_from,
        world_size=facts.world_size,
    )
    if plan.value("packing"):
        change = check_isolation(job)
        view.note(f"packing: documents do not see one another (logits move by {change:.1e} of the largest)")
    scores = {"before": exam(model, words)} if exam else {}
    outcome = train(job, engine, record=record, view=view)
    record.put(outcome=asdict(outcome))
    if outcome.best_step:
        adapters.restore(model, directory / "checkpoints" / f"checkpoint-{outcome.best_step}")
    if exam:
        scores["after"] = exam(model, words)
        record.put(exam=scores)
    adapter = directory / "adapter"
    if facts.rank == 0:
        with stage("export", record, view):
            export.export(model, adapter, tokenizer=words, template=data.template, base=base, initial=initial)
            finish_directory(adapter, record)
    return Result(
        directory=directory,
        adapter=adapter,
        outcome=outcome,
        record=record.content,
        metrics=record.metrics("train"),
        evaluations=record.metrics("eval"),
    )


def check_isolation(job: Job) -> float:
    """Prove on the real model that two packed rows do not see one another; returns how far the logits moved."""
    batch = job.steps[0].micro_batches[0]
    rows = [
        batch.prepared.row(int(row), length=int(length))[0]
        for row, length in zip(batch.rows, batch.lengths, strict=True)
    ]
    return isolation.check(
        job.model,
        rows[0].tolist(),
        rows[-1].tolist(),
        dtype=job.plan.value("compute_dtype"),
        vocabulary=job.plan.model.vocabulary,
    )


def train(job: Job, engine: Engine, *, record: RunRecord, view: View) -> Outcome:
    """Let the engine run, and give each of its events to the record, the trackers and the person."""
    config = job.config
    names = config.logging.trackers if record.is_writing else ()
    opened = open_all(
        names,
        directory=job.directory,
        project=config.logging.project,
        name=job.directory.name,
        config=config.model_dump(mode="json"),
    )

    def emit(event: Event) -> None:
        if isinstance(event, (StepResult, EvalResult)):
            kind = "train" if isinstance(event, StepResult) else "eval"
            values = asdict(event)
            record.metric(kind, values)
            for tracker in opened:
                tracker.log({f"{kind}/{k}": v for k, v in values.items() if k != "step"}, step=event.step)
        elif isinstance(event, Dtypes):
            record.put(dtypes=event.found)
        elif isinstance(event, Saved):
            record.metric("checkpoint", {"step": event.step, "directory": str(event.directory)})
        view.event(event)

    status = "failed"
    try:
        with stage("training", record, view):
            outcome = engine.run(job, emit)
        status = "finished"
        return outcome
    finally:
        for tracker in opened:
            tracker.close(status=status)


def finish_directory(adapter: Path, record: RunRecord) -> None:
    """Put the curve and the model card beside the adapter."""
    evaluations = record.metrics("eval")
    curve.draw(record.metrics("train"), evaluations, adapter / "training_curve.png")
    card.write(record.content, evaluations, adapter / "README.md")


@contextmanager
def stage(name: str, record: RunRecord, view: View) -> Iterator[None]:
    """Announce a stage, and note how long it took."""
    view.stage(name)
    began = time.monotonic()
    try:
        yield
    finally:
        record.timing(name, time.monotonic() - began)
