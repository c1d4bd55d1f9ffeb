"""The stages of a run, from the configuration to the adapter. Read `Stages.go`: it is the way of the data.

config + facts -> base model -> rows -> plan -> 4-bit base + adapter -> engine -> adapter directory, all of it recorded.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loradock import signals
from loradock.config.load import Loaded
from loradock.config.schema import RunConfig
from loradock.data.corpus import Corpus, prepare_corpus
from loradock.distributed import collectives
from loradock.distributed.heartbeat import Peers
from loradock.distributed.watchdog import Phase, Watchdog
from loradock.env_check.guard import Guard
from loradock.errors import ConfigError, NoCheckpoint
from loradock.facts import Facts, ModelFacts
from loradock.model import adapters, export, load, shape, source, tokenizer
from loradock.plan import planner
from loradock.plan.memory.sharded import CUTS_WEIGHTS
from loradock.plan.plan import Plan
from loradock.training import device_memory
from loradock.training.backends import engine_named
from loradock.training.checkpoint import state
from loradock.training.checkpoint.manifest import DamagedCheckpoint, open_checkpoint
from loradock.training.checkpoint.store import (
    Checkpoint,
    Checkpoints,
    found,
    newest_good,
    sweep,
)
from loradock.training.job import (
    Engine,
    Job,
    Outcome,
    Unsound,
)
from loradock.training.observers import loss_curve, model_card
from loradock.training.run_dir import disk_space, fingerprint
from loradock.training.run_dir import resume as resuming
from loradock.training.run_dir.paths import CHECKPOINTS
from loradock.training.run_dir.record import RunRecord
from loradock.training.run_dir.status import Status
from loradock.training.saving import Progress
from loradock.training.telling import View, told

ADAPTER = "adapter"
ADAPTER_COPIES = 2
"""While a new export is put in the place of an old one, both are there."""
PHASES: dict[str, Phase] = {"training": "step", "export": "save"}
STATES = {"training": "training", "export": "exporting"}

Exam = Callable[[Any, Any], dict[str, Any]]
"""(model, tokenizer) -> what was scored; held before and after training."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run."""

    directory: Path
    adapter: Path
    outcome: Outcome
    record: dict[str, Any]
    metrics: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a run is about, whichever engine trains it; no weight is read yet."""

    base: source.BaseModel
    words: Any
    model: ModelFacts
    data: Corpus
    checkpoint: Checkpoint | None


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One attempt at a run. Each stage is announced, timed and recorded, and may be stopped by a signal."""

    loaded: Loaded
    facts: Facts
    record: RunRecord
    status: Status
    view: View
    watchdog: Watchdog
    peers: Peers | None = None
    guard: Guard | None = None

    def go(self, *, allowed: Collection[str], exam: Exam | None) -> Result:
        """The stages in order."""
        asked, facts = self.loaded.config, self.facts
        planner.require_samples(asked, processes=facts.world_size)
        checkpoint = self.continued_from()
        before = Progress.of(checkpoint).decided if checkpoint else {}
        config, held = resuming.held(asked, before, asked_anew=allowed)
        base, words, model_facts = self.find_base(config)
        data = self.prepare(config, words, max_length=shape.longest_row(config.data.max_length, model_facts))
        reasons = dict.fromkeys(held, f"as {checkpoint.path.name} was made") if checkpoint else {}
        known = Known(base=base, words=words, model=model_facts, data=data, checkpoint=checkpoint)
        try:
            return self.train(config, known, reasons=reasons, allowed=allowed, exam=exam)
        except Unsound as error:
            if config.engine != "auto":
                raise
            refusal = error.what
        gc.collect()  # the model that was refused, before it is loaded again
        self.view.note(f"warning: {refusal}; the run goes on with engine trl")
        reasons["engine"] = f"the fast engine cannot be used: {refusal}"
        config = config.model_copy(update={"engine": "trl"})
        return self.train(config, known, reasons=reasons, allowed=allowed, exam=exam)

    def train(
        self,
        config: RunConfig,
        known: Known,
        *,
        reasons: Mapping[str, str],
        allowed: Collection[str],
        exam: Exam | None,
    ) -> Result:
        """The stages from the plan on. Raises Unsound before anything is trained where another engine may serve."""
        asked, record, directory = self.loaded.config, self.record, self.record.directory
        facts = device_memory.measured(self.facts, device=config.device)
        base, words, data, checkpoint = known.base, known.words, known.data, known.checkpoint
        plan = planner.make(config, facts=facts, model=known.model, data=data.facts, reasons=reasons)
        identity = {
            **fingerprint.of_config(asked),
            **fingerprint.of_deepspeed(asked),
            **fingerprint.of_versions(),
            **fingerprint.of_plan(plan, world_size=facts.world_size),
            **fingerprint.of_base(base),
            **fingerprint.of_data(data),
        }
        self.check_identity(identity, checkpoint, allowed=allowed)
        if exam:
            check_exam(plan)
        self.prove_machine(plan)
        engine = self.choose_engine(plan)
        model = self.load_model(config, base, plan=plan)
        identity |= fingerprint.of_adapter(model)
        self.check_identity(identity, checkpoint, allowed=allowed)
        record.put(fingerprint=identity, config=asked.model_dump(mode="json"), origins=self.loaded.origins)
        initial = export.save_initial(model, directory, init=config.lora.init, is_writing=facts.rank == 0)
        folder, keep = directory / CHECKPOINTS, config.checkpoints.keep
        job = Job(
            config=config,
            plan=plan,
            model=model,
            tokenizer=words,
            steps=data.steps(plan, facts=facts),
            evaluation=data.evaluation(plan, facts=facts),
            directory=directory,
            checkpoints=Checkpoints(folder, run_id=record.run_id, fingerprint=identity, keep=keep, fence=record.fence),
            resume=checkpoint,
            watchdog=self.watchdog,
            world_size=facts.world_size,
            rank=facts.rank,
            peers=self.peers,
        )
        self.check_room(job)
        self.check_engine(engine, job)
        scores = {"before": exam(model, words)} if exam else {}
        with self.stage("training"), told(job, record=record, status=self.status, view=self.view) as emit:
            outcome = engine.run(job, emit)
        record.put(outcome=asdict(outcome))
        if outcome.best_step:
            state.restore_adapter(model, best(folder, outcome.best_step))
        if exam:
            scores["after"] = exam(model, words)
            record.put(exam=scores)
        adapter = directory / ADAPTER
        if facts.rank == 0:
            with self.stage("export"):
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

    def find_base(self, config: RunConfig) -> tuple[source.BaseModel, Any, ModelFacts]:
        """The base's directory, its tokenizer and what its config says; no weight is read."""
        with self.stage("model files and libraries"):
            base = source.find(config.model, on_bytes=self.watchdog.beat)
            words = tokenizer.open_tokenizer(base)
            model_facts = shape.inspect(base, config)
            self.record.hash_weights(base.weight_files)
            self.record.put(
                name=self.record.directory.name,
                base={"name": base.name, "revision": base.revision, "path": str(base.directory)},
            )
        return base, words, model_facts

    def prepare(self, config: RunConfig, words: Any, *, max_length: int) -> Corpus:
        """Rows as tokens: by rank 0 into the cache, then found there by all."""

        def work() -> Corpus:
            return prepare_corpus(
                config, tokenizer=words, max_length=max_length, facts=self.facts, progress=self.prepared_rows
            )

        with self.stage("data"):
            data = collectives.first_then_all(self.facts, work)
            self.record.put(data=data.as_dict())
        return data

    def prove_machine(self, plan: Plan) -> None:
        """Compute, as planned, what shows that this machine can train: the last look before weights are read."""
        with self.stage("env-check"), collectives.together("checking the environment"):
            proof = self.guard and self.guard.compute(plan, beat=self.watchdog.beat)
        if proof:
            self.record.timing("env-check", proof["seconds"])
            self.record.put(env_check=proof)

    def choose_engine(self, plan: Plan) -> Engine:
        """The engine that was decided on; the whole plan is known now, recorded and shown."""
        with self.stage("training library"):
            engine = engine_named(plan.engine.value)
        self.record.put(plan=plan.as_dict())
        self.status.put(total_steps=plan.steps.value, now=True)
        self.view.plan(plan)
        return engine

    def load_model(self, config: RunConfig, base: source.BaseModel, *, plan: Plan) -> Any:
        """The 4-bit base with a fresh adapter."""
        with self.stage("base model"):
            whole, coverage = load.load(base, config.model, plan=plan, local_rank=self.facts.local_rank)
            model = adapters.attach(whole, config, base=base)
            self.view.note(str(coverage))
            self.record.put(coverage={**asdict(coverage), "missed": list(coverage.missed)})
        return model

    def check_identity(
        self, identity: Mapping[str, str], checkpoint: Checkpoint | None, *, allowed: Collection[str]
    ) -> None:
        """Refuse to continue as another run (NoCheckpoint); what is known so far is compared."""
        if checkpoint is None:
            return
        before = {key: text for key, text in checkpoint.fingerprint.items() if key in identity or not is_late(key)}
        changes = fingerprint.check(before, identity, allowed=allowed, directory=self.record.directory)
        self.record.put(allowed_changes=changes)

    def check_engine(self, engine: Engine, job: Job) -> None:
        """The engine's own look at the real model. Unsound on every process where one of them finds it so."""
        refused: Unsound | None = None
        with self.stage("engine check"):
            try:
                for line in engine.prepare(job):
                    self.view.note(line)
            except Unsound as error:
                refused = error
            if what := collectives.first_word(refused.what if refused else None):
                raise Unsound(what, hint="--set engine=trl")

    def check_room(self, job: Job) -> None:
        """Room on the disk for what the run will write."""
        chosen = adapters.trainable(job.model)
        weights, cadence = sum(each.numel() for each in chosen), job.plan.cadence.value
        if job.rank == 0:
            size = disk_space.checkpoint_bytes(
                weights, optimizer=job.plan.optimizer.value, tensors=len(chosen), processes=job.world_size
            )
            done = job.resume.step if job.resume else 0
            line = disk_space.before_run(
                job.directory,
                checkpoint_bytes=size,
                adapter_bytes=ADAPTER_COPIES * disk_space.WEIGHT_BYTES * weights,
                keep=job.config.checkpoints.keep,
                keeps_best=job.config.checkpoints.keep_best,
                held=[each.size_bytes for each in found(job.checkpoints.folder, is_hashed=False)],
                planned=-(-(job.plan.steps.value - done) // cadence.save),
            )
            self.view.note(line)

    def continued_from(self) -> Checkpoint | None:
        """The newest good checkpoint of this run, on every process; metric lines after it are forgotten."""
        folder = self.record.directory / CHECKPOINTS
        checkpoint = None
        if self.facts.rank == 0:
            for left in sweep(folder):
                self.view.note(f"warning: {left} could not be removed; a process that was killed left it")
            checkpoint, lines = newest_good(folder, run_id=self.record.run_id)
            for line in lines:
                self.view.note(f"warning: {line}")
        path = collectives.from_first(self.facts, checkpoint.path if checkpoint else None)
        if path and checkpoint is None:
            checkpoint = open_checkpoint(path)
        self.record.rewind(checkpoint.step if checkpoint else 0)
        if checkpoint:
            self.record.put(resumed_from=checkpoint.path.name)
            self.status.put(step=checkpoint.step, last_checkpoint=checkpoint.path.name, now=True)
            self.view.note(f"continuing from {checkpoint.path.name}")
        return checkpoint

    def prepared_rows(self, rows: int, tokens: int) -> None:
        """Rows are prepared chunk by chunk."""
        signals.check()
        self.watchdog.beat()
        self.view.prepared_rows(rows, tokens)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announce a stage, note how long it took, and stop before it where a signal came."""
        signals.check()
        self.watchdog.beat(PHASES.get(name, "setup"))
        self.view.stage(name)
        self.status.put(state=STATES.get(name, "setup"), now=True)
        began = time.monotonic()
        try:
            yield
        finally:
            self.record.timing(name, time.monotonic() - began)
            self.watchdog.beat("setup")


def best(folder: Path, step: int) -> Checkpoint:
    """The best checkpoint, to be exported. NoCheckpoint where it is damaged."""
    try:
        return open_checkpoint(folder / f"checkpoint-{step}")
    except DamagedCheckpoint as error:
        accept = "--allow-change checkpoints --allow-change evaluation"
        hint = f"--set checkpoints.keep_best=false {accept} exports the last step instead"
        raise NoCheckpoint(f"the best checkpoint is damaged: {error}", hint=hint) from error


def is_late(field: str) -> bool:
    """True for what is only known once the model is loaded."""
    return field.startswith("adapter.")


def check_exam(plan: Plan) -> None:
    """An exam is held in each process on its own. ConfigError where none has the whole model."""
    mode = plan.parallel.value
    if mode in CUTS_WEIGHTS:
        what = (
            f"the demo is examined before and after training, and under train.parallel {mode} no process has its model"
        )
        raise ConfigError(what, hint="--set train.parallel=ddp, or train a model of your own: --model, --data")


def finish_directory(adapter: Path, record: RunRecord) -> None:
    """Put the curve and the model card beside the adapter."""
    evaluations = record.metrics("eval")
    loss_curve.draw(record.metrics("train"), evaluations, adapter / "training_curve.png")
    model_card.write(record.content, evaluations, adapter / "README.md")
