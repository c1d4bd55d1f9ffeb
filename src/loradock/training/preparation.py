"""What comes before training: base, rows, plan, proof of the machine, the model with its adapter, and its backend."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loradock.catalog import engines
from loradock.config.schema import RunConfig
from loradock.data.corpus import Corpus, prepare_corpus
from loradock.distributed import collectives
from loradock.errors import ConfigError, NoCheckpoint
from loradock.facts import Facts, ModelFacts
from loradock.machine import host_memory
from loradock.model import adapters, export, load, shape, source, tokenizer, untrained, whole
from loradock.plan import planner
from loradock.plan.plan import Plan
from loradock.training import device_memory, packing_check
from loradock.training.backends import backend_named
from loradock.training.backends.base import Backend
from loradock.training.checkpoint.manifest import open_checkpoint
from loradock.training.checkpoint.store import Checkpoint, Checkpoints, found, newest_good, sweep
from loradock.training.context import RunContext
from loradock.training.job import Job, Leaking, Unsound
from loradock.training.objectives import objective_of
from loradock.training.recipe import Recipe
from loradock.training.run_dir import disk_space, fingerprint
from loradock.training.run_dir import resume as resuming
from loradock.training.run_dir.paths import CHECKPOINTS
from loradock.training.saving import Progress

SHOWN = 3
"""Tensors that a warning names."""
ADAPTER_COPIES = 2
"""While a new export is put in the place of an old one, both are there."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run is about, whichever backend trains it; no weight is read yet. `held`: decisions that it keeps."""

    config: RunConfig
    base: source.BaseModel
    words: Any
    model: ModelFacts
    data: Corpus
    checkpoint: Checkpoint | None
    held: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Ready:
    """All that training needs. `initial` is where PiSSA's or OLoRA's first adapter lies, for the export."""

    job: Job
    backend: Backend
    found: Found
    initial: Path | None


def ready(context: RunContext, *, has_exam: bool) -> Ready:
    """Prepare the run. Where the fast backend cannot train the real model and none was asked for, peft takes its place.

    Where packed documents see one another in the real model, and packing was not asked for, they are padded.
    `has_exam`: the model is examined before and after training, by each rank on its own.
    """
    planner.require_samples(context.loaded.config, processes=context.facts.world_size)
    about = find(context)
    reasons = dict.fromkeys(about.held, f"as {about.checkpoint.path.name} was made") if about.checkpoint else {}
    config = about.config
    while True:
        try:
            return with_backend(context, about, config, reasons=reasons, has_exam=has_exam)
        except Unsound as error:
            if config.engine != "auto":
                raise
            refusal, instead = error.what, f"engine {engines.PREFERRED.fallback}"
            reasons["engine"] = f"{engines.PREFERRED.title} cannot be used: {refusal}"
            config = config.model_copy(update={"engine": engines.PREFERRED.fallback})
        except Leaking as error:
            if config.train.packing != "auto":
                raise
            refusal, instead = error.what, "padded rows"
            reasons["packing"] = refusal
            config = config.model_copy(update={"train": config.train.model_copy(update={"packing": False})})
        gc.collect()  # the model that was refused, before it is loaded again
        context.view.note(f"warning: {refusal}; the run continues with {instead}")


def find(context: RunContext) -> Found:
    """The checkpoint to continue from, the configuration as it is continued, the base and the rows."""
    checkpoint = continued_from(context)
    before = Progress.of(checkpoint).decided if checkpoint else {}
    config, held = resuming.held(context.loaded.config, before, asked_anew=context.allowed)
    base, words, model = find_base(context, config)
    data = prepare(context, config, words, model)
    tell_untrained(context, config, base, words=words, data=data)
    return Found(config=config, base=base, words=words, model=model, data=data, checkpoint=checkpoint, held=tuple(held))


def continued_from(context: RunContext) -> Checkpoint | None:
    """The newest good checkpoint of this run, on every rank; metric lines after it are forgotten."""
    record, view = context.record, context.view
    folder = context.directory / CHECKPOINTS
    checkpoint = None
    if context.facts.rank == 0:
        for left in sweep(folder):
            view.note(f"warning: {left} could not be removed; a process that was killed left it")
        checkpoint, lines = newest_good(folder, run_id=record.run_id)
        for line in lines:
            view.note(f"warning: {line}")
    path = collectives.from_first(context.facts, checkpoint.path if checkpoint else None)
    if path and checkpoint is None:
        checkpoint = open_checkpoint(path)
    if damaged := record.rewind(checkpoint.step if checkpoint else 0):
        view.note(f"warning: metrics.jsonl: {damaged} damaged line{'s are' if damaged > 1 else ' is'} left out")
    if checkpoint:
        record.put(resumed_from=checkpoint.path.name)
        context.status.put(step=checkpoint.step, last_checkpoint=checkpoint.path.name, now=True)
        view.note(f"continuing from {checkpoint.path.name}")
        for line in moved(record.facts_before, context.facts):
            view.note(line)
    return checkpoint


def moved(before: Mapping[str, Any], now: Facts) -> Iterator[str]:
    """What is told of a run on the CPU that goes on where other bits are computed."""
    was, is_now = before.get("instruction_set"), now.instruction_set
    if was and was != is_now and not now.has_gpu:
        yield f"warning: this run began on {was}, and continues on {is_now}: rounding differs (deterministic: portable)"
    if before.get("cpus", now.cpus) != now.cpus and not now.has_gpu:
        yield f"warning: this run began with {before['cpus']} CPUs, and continues with {now.cpus}: rounding differs"


def find_base(context: RunContext, config: RunConfig) -> tuple[source.BaseModel, Any, ModelFacts]:
    """The base's directory, its tokenizer and what its config says; no weight is read."""
    with context.stage("model files and libraries"):
        base = source.find(config.model, on_bytes=context.watchdog.beat)
        words = tokenizer.open_tokenizer(base)
        model = shape.inspect(base, config)
        unused = whole.check(base)
        if unused:
            context.view.note(f"warning: {len(unused)} tensors of the base are not used: {', '.join(unused[:SHOWN])}")
        context.record.hash_weights(base.weight_files)
        context.record.put(
            name=context.directory.name,
            base={
                "name": base.name,
                "revision": base.revision,
                "path": str(base.directory.absolute()),
                "weights": [file.name for file in base.weight_files],
                "unused_tensors": unused,
            },
        )
    return base, words, model


def prepare(context: RunContext, config: RunConfig, words: Any, model: ModelFacts) -> Corpus:
    """Rows as tokens: by rank 0 into the cache, then found there by all; dated as the run began, however late it is."""
    date = config.data.date or collectives.from_first(context.facts, context.record.content["started"])[:10]
    config = config.model_copy(update={"data": config.data.model_copy(update={"date": date})})

    def work() -> Corpus:
        return prepare_corpus(
            config,
            tokenizer=words,
            max_length=lambda rows: shape.longest_row(config.data.max_length, model, rows=rows),
            facts=context.facts,
            progress=context.prepared_rows,
        )

    with context.stage("data"):
        data = collectives.first_then_all(context.facts, work)
        context.record.put(data=data.as_dict())
        if config.objective_spec.embeds:
            context.record.put(embedding=Recipe.of(config, words, base=context.record.content["base"]).model_dump())
    sources = [each for part in data.parts.values() for each in part.prepared.sources]
    told = dict.fromkeys(line for each in sources for line in each.told())
    for note in (*told, *data.notes):
        context.view.note(note)
    return data


def tell_untrained(context: RunContext, config: RunConfig, base: source.BaseModel, *, words: Any, data: Corpus) -> None:
    """Say which control tokens of the rows the base has never trained; of a large data set its first rows are seen."""
    if context.facts.rank:
        return
    held = set[int]().union(*(part.prepared.first_ids() for part in data.parts.values()))
    control = {number: str(token) for number, token in words.added_tokens_decoder.items() if number in held}
    if line := untrained.note(base, control, saved=config.lora.modules_to_save):
        context.view.note(line)


def with_backend(
    context: RunContext, about: Found, config: RunConfig, *, reasons: Mapping[str, str], has_exam: bool
) -> Ready:
    """The plan, and what follows from it. Raises Unsound before anything is trained where another backend may serve."""
    asked, record, facts = context.loaded.config, context.record, context.facts
    plan = planner.fitting(
        config,
        facts=device_memory.measured(facts, device=config.device),
        model=about.model,
        data=about.data.facts,
        at_length=lambda tokens: about.data.at_length(tokens).facts,
        reasons=reasons,
    )
    if plan.max_length.value != about.data.facts.limit_tokens:
        about = replace(about, data=about.data.at_length(plan.max_length.value))
    identity = {
        **fingerprint.of_config(asked),
        **fingerprint.of_deepspeed(asked),
        **fingerprint.of_versions(),
        **fingerprint.of_plan(plan, world_size=facts.world_size),
        **fingerprint.of_base(about.base),
        **fingerprint.of_data(about.data),
    }
    check_identity(context, identity, about.checkpoint)
    check_left(context, plan, about.checkpoint)
    if has_exam:
        check_exam(plan)
    prove_machine(context, plan)
    with context.stage("training library"):
        backend_class, objective = backend_named(plan.engine.value), objective_of(config)
    record.put(plan=plan.as_dict())
    context.status.put(total_steps=plan.steps.value, now=True)
    context.view.plan(plan)
    model = load_model(context, config, about.base, plan=plan)
    identity |= fingerprint.of_adapter(model)
    check_identity(context, identity, about.checkpoint)
    record.put(fingerprint=identity, config=asked.model_dump(mode="json"), origins=context.loaded.origins)
    initial = export.save_initial(model, context.directory, init=config.lora.init, is_writing=facts.rank == 0)
    job = Job(
        config=config,
        plan=plan,
        objective=objective,
        model=model,
        tokenizer=about.words,
        steps=about.data.steps(plan, facts=facts),
        evaluation=about.data.evaluation(plan, facts=facts),
        directory=context.directory,
        checkpoints=Checkpoints(
            context.directory / CHECKPOINTS,
            run_id=record.run_id,
            fingerprint=identity,
            keep=config.checkpoints.keep,
            fence=record.fence,
        ),
        resume=about.checkpoint,
        watchdog=context.watchdog,
        world_size=facts.world_size,
        rank=facts.rank,
        peers=context.peers,
    )
    check_disk_space(context, job)
    backend = backend_class(job)
    check_backend(context, backend)
    return Ready(job=job, backend=backend, found=about, initial=initial)


def check_identity(context: RunContext, identity: Mapping[str, str], checkpoint: Checkpoint | None) -> None:
    """Refuse to continue as another run (NoCheckpoint); what is known so far is compared."""
    if checkpoint is None:
        return
    before = {key: text for key, text in checkpoint.fingerprint.items() if key in identity or not is_late(key)}
    changes = fingerprint.check(before, identity, allowed=context.allowed, directory=context.directory)
    context.record.put(allowed_changes=changes)


def check_left(context: RunContext, plan: Plan, checkpoint: Checkpoint | None) -> None:
    """NoCheckpoint where a finished run was asked to change and no step would be made: its record stays true."""
    changes = context.record.content.get("allowed_changes")
    if context.record.finished is None or checkpoint is None or not changes or checkpoint.step < plan.steps.value:
        return
    what = f"the run in {context.directory} is finished at step {checkpoint.step}: no step is left to train with "
    hint = "--fresh starts a new run with it, --max-steps N --allow-change train.max_steps adds steps to this one"
    raise NoCheckpoint(what + ", ".join(f"{field} {to['now']}" for field, to in changes.items()), hint=hint)


def is_late(field: str) -> bool:
    """True for what is only known once the model is loaded."""
    return field.startswith("adapter.")


def check_exam(plan: Plan) -> None:
    """An exam is held by each rank on its own. ConfigError where none has the whole model."""
    mode = plan.parallel.value
    if engines.MODES[mode].cuts_weights:
        what = f"the demo is examined before and after training, and under train.parallel {mode} no rank has its model"
        raise ConfigError(what, hint="--set train.parallel=ddp, or train a model of your own: --model, --data")


def prove_machine(context: RunContext, plan: Plan) -> None:
    """Compute, as planned, what shows that this machine can train: the last look before weights are read."""
    with context.stage("env-check"), collectives.together("checking the environment"):
        proof = context.guard and context.guard.compute(plan, beat=context.watchdog.beat)
    if proof:
        context.record.timing("env-check", proof["seconds"])
        context.record.put(env_check=proof)


def load_model(context: RunContext, config: RunConfig, base: source.BaseModel, *, plan: Plan) -> Any:
    """The quantised base with a fresh adapter."""
    with context.stage("base model"):
        with host_memory.taken() as memory:
            whole, coverage = load.load(base, config.model, plan=plan, local_rank=context.facts.local_rank)
            model = adapters.attach(whole, config, base=base)
        context.view.note(str(coverage))
        context.record.put(coverage={**asdict(coverage), "missed": list(coverage.missed)}, loading_memory=memory)
    return model


def check_disk_space(context: RunContext, job: Job) -> None:
    """Space on the disk for what the run will write."""
    if job.rank:
        return
    chosen = adapters.trainable(job.model)
    count, cadence = sum(each.numel() for each in chosen), job.plan.cadence.value
    size = disk_space.checkpoint_bytes(
        count, optimizer=job.plan.optimizer.value, tensors=len(chosen), processes=job.world_size
    )
    done = job.resume.step if job.resume else 0
    line = disk_space.before_run(
        job.directory,
        checkpoint_bytes=size,
        adapter_bytes=ADAPTER_COPIES * disk_space.WEIGHT_BYTES * count,
        keep=job.config.checkpoints.keep,
        keeps_best=job.config.keeps_best,
        held=[each.size_bytes for each in found(job.checkpoints.folder, is_hashed=False)],
        planned=-(-(job.plan.steps.value - done) // cadence.save),
    )
    context.view.note(line)


def check_backend(context: RunContext, backend: Backend) -> None:
    """The backend's own look at the real model. Unsound or Leaking on every rank where one of them finds it so."""
    refused: Unsound | Leaking | None = None
    with context.stage("engine check"):
        try:
            for line in backend.prepare():
                context.view.note(line)
        except (Unsound, Leaking) as error:
            refused = error
        if what := collectives.first_word(refused.what if refused else None):
            if fallback := engines.of(backend.job.plan.engine.value).fallback:
                raise Unsound(what, hint=f"--set engine={fallback}")
            raise Leaking(what, hint=packing_check.HINT)
