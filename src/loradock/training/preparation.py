"""What comes before training: base, rows, plan, proof of the machine, the model with its adapter, and its backend."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loradock.catalog import engines
from loradock.config.schema import RunConfig
from loradock.distributed import collectives
from loradock.errors import ConfigError, NoCheckpoint
from loradock.machine import host_memory
from loradock.model import adapters, export, load, source
from loradock.model.opening import Opening
from loradock.plan import planner
from loradock.plan.knobs import reference
from loradock.plan.plan import Plan
from loradock.training import continued, device_memory, packing_check
from loradock.training.backends import backend_named
from loradock.training.backends.base import Backend
from loradock.training.checkpoint.store import Checkpoint, Checkpoints, found
from loradock.training.context import RunContext
from loradock.training.inputs import Inputs, find
from loradock.training.job import Job, Leaking, Unsound
from loradock.training.objectives import objective_of
from loradock.training.run_dir import disk_space, fingerprint
from loradock.training.run_dir import identity as run_identity
from loradock.training.run_dir.paths import CHECKPOINTS

ADAPTER_COPIES = 2
"""While a new export is put in the place of an old one, both are there."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """All that training needs. `initial` is where PiSSA's or OLoRA's first adapter lies, for the export."""

    job: Job
    backend: Backend
    found: Inputs
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


def with_backend(
    context: RunContext, about: Inputs, config: RunConfig, *, reasons: Mapping[str, str], has_exam: bool
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
        **fingerprint.of_dropout(plan, share=asked.lora.dropout),
        **fingerprint.of_base(about.base),
        **continued.identity_of(asked),
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
    record.put(
        fingerprint=identity,
        data=about.data.as_dict(),
        config=asked.model_dump(mode="json"),
        origins=context.loaded.origins,
        working_directory=str(Path.cwd()),
    )
    first_adapter = tuple(each.detach().clone() for each in adapters.trainable(model)) if keeps_first(config) else None
    initial = export.save_initial(model, context.directory, init=config.lora.init, is_writing=facts.rank == 0)
    job = Job(
        config=config,
        plan=plan,
        objective=objective,
        model=model,
        tokenizer=about.tokenizer,
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
        initial=first_adapter,
    )
    check_disk_space(context, job)
    backend = backend_class(job)
    check_backend(context, backend)
    return Ready(job=job, backend=backend, found=about, initial=initial)


def keeps_first(config: RunConfig) -> bool:
    """Whether the adapter that the run begins with is the reference of what it learns."""
    return config.lora.adapter is not None and "score" in config.objective_spec.passes


def check_identity(context: RunContext, identity: Mapping[str, str], checkpoint: Checkpoint | None) -> None:
    """Refuse to continue as another run (NoCheckpoint); what is known so far is compared."""
    if checkpoint is None:
        return
    before = {key: text for key, text in checkpoint.fingerprint.items() if key in identity or not is_late(key)}
    changes = run_identity.check(before, identity, allowed=context.allowed, directory=context.directory)
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
    stage = context.stage("env-check") if context.guard else nullcontext()
    with stage, collectives.together("checking the environment"):
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
            begun = continued.into(model, config, base=base)
        for line in (str(coverage), *Opening.of(config).notes(base), *begun):
            context.view.note(line)
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
    size += reference.kept_bytes(job.plan.data) if job.plan.reference.value == reference.KEPT else 0
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
