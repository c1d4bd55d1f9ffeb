"""One run, from an open directory to the adapter in it: what is around it, what is prepared, the loop, the export.

RunConfig + Facts -> base, rows -> Plan -> quantised base + adapter -> Job -> loop x backend -> adapter directory
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.errors import NoCheckpoint
from loradock.training.context import RunContext
from loradock.training.run_dir.paths import ADAPTER
from loradock.training.run_dir.resume import EXPORTED, exported

if TYPE_CHECKING:
    from loradock.training.job import Outcome
    from loradock.training.preparation import Ready

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


def run(
    around: AbstractContextManager[RunContext], *, exam: Exam | None = None, stop_after: int | None = None
) -> Result:
    """Train the run that `around` opens, from its last checkpoint where it has one, and export its adapter.

    `stop_after`: a step after which it is stopped as by a signal.
    Raises LoradockError, with run.json telling how far it came.
    """
    with around as context:
        from loradock.training import loop, preparation
        from loradock.training.telling import told

        ready = preparation.ready(context, has_exam=exam is not None)
        job = replace(ready.job, stop_after=stop_after)
        scores = {"before": exam(job.model, job.tokenizer)} if exam else {}
        with context.stage("training"), told(job, context) as emit:
            outcome = loop.train(job, ready.backend, emit)
        context.record.put(outcome=asdict(outcome))
        if outcome.best_step:
            take_best(job.model, job.checkpoints.folder, outcome.best_step)
        if exam:
            context.record.put(exam={**scores, "after": exam(job.model, job.tokenizer)})
        if job.rank == 0:
            with context.stage("export"):
                export(context, ready)
        return Result(
            directory=context.directory,
            adapter=context.directory / ADAPTER,
            outcome=outcome,
            record=context.record.content,
            metrics=context.record.metrics("train"),
            evaluations=context.record.metrics("eval"),
        )


def import_libraries() -> None:
    """Import torch and more: once the machine was looked at, and before the limits of a run count."""
    from loradock.training import loop, preparation  # noqa: F401


def take_best(model: Any, folder: Path, step: int) -> None:
    """Put the best checkpoint's adapter into the model. NoCheckpoint where it is damaged."""
    from loradock.training.checkpoint import state
    from loradock.training.checkpoint.manifest import DamagedCheckpoint, open_checkpoint

    try:
        state.restore_adapter(model, open_checkpoint(folder / f"checkpoint-{step}"))
    except DamagedCheckpoint as error:
        accept = "--allow-change checkpoints --allow-change evaluation"
        hint = f"--set checkpoints.keep_best=false {accept} exports the last step instead"
        raise NoCheckpoint(f"the best checkpoint is damaged: {error}", hint=hint) from error


def export(context: RunContext, ready: Ready) -> None:
    """Write the adapter directory: weights, tokenizer, loss curve and model card."""
    from loradock.model import export as exporting
    from loradock.training.lineage import Lineage
    from loradock.training.observers import loss_curve, model_card
    from loradock.training.recipe import Recipe
    from loradock.training.run_dir import enclosed

    job, adapter, record = ready.job, context.directory / ADAPTER, context.record
    job.checkpoints.clear_trash()
    exporting.export(
        job.model,
        adapter,
        tokenizer=job.tokenizer,
        template=ready.found.data.chat_template,
        base=ready.found.base,
        initial=ready.initial,
        add_tokens=job.config.tokenizer.add_tokens,
    )
    Lineage.of(record.content).write(adapter)
    if "embedding" in record.content:
        Recipe.model_validate(record.content["embedding"]).write(adapter)
    record.put(**{EXPORTED: exported(adapter)})
    enclosed.write(record.content, context.directory, adapter)
    evaluations = record.metrics("eval")
    loss_curve.draw(record.metrics("train"), evaluations, adapter / "training_curve.png")
    is_chat = ready.found.data.chat_template is not None
    prompt = trained_prompt(job.tokenizer, job.config.data.template_arguments) if is_chat else None
    model_card.write(record.content, evaluations, adapter / "README.md", prompt=prompt)


def trained_prompt(tokenizer: Any, arguments: Mapping[str, Any]) -> str | None:
    """A question as the trained chat template puts it to the model; None for a template that cannot write this one."""
    from loradock.data import chat_template
    from loradock.errors import ModelError

    question = [{"role": "user", "content": "..."}]
    given = {name: str(text) for name, text in tokenizer.special_tokens_map.items()} | {**arguments}
    try:
        return chat_template.render(
            tokenizer.chat_template, question, name="the tokenizer's own", given=given, is_prompt=True
        )[0]
    except (chat_template.Refused, ModelError):  # it only adorns the model card of a run that is trained
        return None
