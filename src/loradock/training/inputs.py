"""What a run is about, whichever backend trains it: the checkpoint to continue from, base, tokenizer and rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loradock.config.schema import RunConfig
from loradock.data.corpus import Corpus, prepare_corpus
from loradock.data.read import other_files
from loradock.data.sources import held_out_files
from loradock.distributed import collectives
from loradock.env_check.intent import cache_of_machine
from loradock.facts import Facts, ModelFacts
from loradock.machine import Host
from loradock.model import hub_cache, kept_facts, lengths, shape, source, untrained, whole
from loradock.model.tokenizer import open_tokenizer
from loradock.training import continued
from loradock.training.checkpoint.manifest import open_checkpoint
from loradock.training.checkpoint.store import Checkpoint, newest_good, sweep
from loradock.training.context import RunContext
from loradock.training.recipe import Recipe
from loradock.training.run_dir import resume as resuming
from loradock.training.run_dir.paths import CHECKPOINTS
from loradock.training.saving import Progress

SHOWN = 3
"""Tensors that a warning names."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a run is about, whichever backend trains it; no weight is read yet. `held`: decisions that it keeps."""

    config: RunConfig
    base: source.BaseModel
    tokenizer: Any
    model: ModelFacts
    data: Corpus
    checkpoint: Checkpoint | None
    held: tuple[str, ...]


def find(context: RunContext) -> Inputs:
    """The checkpoint to continue from, the configuration as it is continued, the base and the rows."""
    checkpoint = continued_from(context)
    before = Progress.of(checkpoint).decided if checkpoint else {}
    config, held = resuming.held(context.loaded.config, before, asked_anew=context.allowed)
    if config.lora.adapter is not None:
        continued.directory_of(config.lora.adapter)
    base, tokenizer, model = find_base(context, config)
    data = prepare(context, config, tokenizer, model)
    tell_untrained(context, config, base, tokenizer=tokenizer, data=data)
    return Inputs(
        config=config, base=base, tokenizer=tokenizer, model=model, data=data, checkpoint=checkpoint, held=tuple(held)
    )


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
        before = kept_key(config)
        base = source.find(config.model, on_bytes=context.watchdog.beat)
        tokenizer = open_tokenizer(base, add_tokens=config.tokenizer.add_tokens)
        model = shape.inspect(base, config)
        if context.facts.rank == 0:
            folder = cache_of_machine(Host())
            if kept_facts.known(before, folder) is None:
                kept_facts.keep(model, key=before, now=kept_key(config), folder=folder)
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
    return base, tokenizer, model


def kept_key(config: RunConfig) -> str | None:
    """Under which the base's facts are kept; None where its files are not here yet."""
    directory = hub_cache.directory_of(config.model.name, config.model.revision, environ=os.environ)
    return kept_facts.key_of(config, directory)


def prepare(context: RunContext, config: RunConfig, tokenizer: Any, model: ModelFacts) -> Corpus:
    """Rows as tokens: by rank 0 into the cache, then found there by all; dated as the run began, however late it is."""
    date = config.data.date or collectives.from_first(context.facts, context.record.content["started"])[:10]
    config = config.model_copy(update={"data": config.data.model_copy(update={"date": date})})

    def work() -> Corpus:
        return prepare_corpus(
            config,
            tokenizer=tokenizer,
            max_length=lambda rows: lengths.longest_row(config.data.max_length, model, rows=rows),
            facts=context.facts,
            progress=context.prepared_rows,
        )

    with context.stage("data"):
        data = collectives.first_then_all(context.facts, work)
        recorded = context.record.content.get("data") or {}
        changes = [*other_files(config.data.sources, recorded.get("sources", ()))]
        changes += other_files(held_out_files(config.data), recorded.get("validation_sources", ()))
        if not recorded:  # else it is what was trained on, until it is known that this one may continue it
            context.record.put(data=data.as_dict())
        if config.objective_spec.embeds:
            context.record.put(embedding=Recipe.of(config, tokenizer, base=context.record.content["base"]).model_dump())
    sources = [each for part in data.parts.values() for each in part.prepared.sources]
    told = dict.fromkeys(line for each in sources for line in each.told())
    for note in (*(f"warning: {line}" for line in changes), *told, *data.notes):
        context.view.note(note)
    return data


def tell_untrained(
    context: RunContext, config: RunConfig, base: source.BaseModel, *, tokenizer: Any, data: Corpus
) -> None:
    """Say which control tokens of the rows the base has never trained; of a large data set its first rows are seen."""
    if context.facts.rank:
        return
    held = set[int]().union(*(part.prepared.first_ids() for part in data.parts.values()))
    control = {
        number: str(token)
        for number, token in tokenizer.added_tokens_decoder.items()
        if number in held and str(token) not in config.tokenizer.add_tokens
    }
    if line := untrained.note(base, control, saved=config.lora.modules_to_save):
        context.view.note(line)
