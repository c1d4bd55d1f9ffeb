"""How large the pods of a run are to be: its plan for a machine that is not here, from a model's config.json."""

from __future__ import annotations

import os
from pathlib import Path

from loradock.commands.render_given import UNKNOWN_GPU, Given
from loradock.commands.render_options import Site
from loradock.config.schema import RunConfig
from loradock.delivery.kubernetes import sizes as sizing
from loradock.delivery.kubernetes.sizes import Seen, Sizes, cpus_of
from loradock.errors import InputMissing
from loradock.facts import DESCRIBED, DataFacts, Facts, ModelFacts
from loradock.plan import planner

ROWS = 10_000
"""Of the data set that sizes are made for: all of them as long as is allowed, so that no row has to be read."""
CPU_MEMORY_BYTES = 64 << 30


def sized(config: RunConfig, site: Site, given: Given, *, is_demo: bool) -> tuple[Sizes, list[str]]:
    """The sizes, and what they could not be made from.

    OutOfMemory where the plan does not fit the GPU, ConfigError where a step has too few samples for the processes.
    """
    from loradock.model import hub_cache

    gpus = given.gpus if given.gpus is not None else int(not is_demo and config.device != "cpu")
    facts = machine(site, given, config=config, gpus=gpus)
    planner.require_samples(config, processes=facts.world_size)
    earlier = measured(site.from_run)
    notes: list[str] = []
    model, length = look(config)
    plan = None
    if model is None:
        what = f"{config.model.name} is not available here: sizes are assumed, and whether the run fits is unknown"
        notes.append(f"{what}; render where its config.json can be read")
    elif gpus and given.gpu is None:
        notes.append("no GPU is named (--gpu): whether the run fits and how long a step takes is unknown")
    else:
        plan = planner.make(config, facts=facts, model=model, data=longest_rows(length))
    sizes = sizing.sizes(
        config,
        facts,
        model=model,
        plan=plan,
        nodes=site.nodes,
        earlier=earlier,
        has_claim=site.output_claim is not None or "output" in given.host_paths,
        downloads=hub_cache.is_hub_id(config.model.name) and site.cache_claim is None,
        fetched_bytes=given.fetched_bytes or 0,
        asked=given.sizes,
    )
    return sizes, notes


def machine(site: Site, given: Given, *, config: RunConfig, gpus: int) -> Facts:
    """One of the machines, as the plan looks at it."""
    count = max(1, gpus)
    return Facts(
        platform=DESCRIBED,
        python=DESCRIBED,
        cpus=site.cpus or cpus_of(config, gpus=gpus),
        memory_bytes=CPU_MEMORY_BYTES,
        in_container=True,
        gpus=(given.gpu or UNKNOWN_GPU,) * gpus,
        world_size=site.nodes * count,
        local_world_size=count,
    )


def look(config: RunConfig) -> tuple[ModelFacts | None, int]:
    """The model as its config.json here describes it, and the longest row in tokens; None where it is not here."""
    from loradock.model import hub_cache

    name = config.model.name
    directory = hub_cache.directory_of(name, config.model.revision, environ=os.environ)
    if directory is None or not (directory / "config.json").is_file():
        return None, 0
    from loradock.model import kept_facts, lengths

    _, model = kept_facts.inspect(config)
    return model, lengths.longest_row(config.data.max_length, model)


def longest_rows(length: int) -> DataFacts:
    """Rows that are all as long as is allowed: no step can take longer, or more memory."""
    return DataFacts(
        train_rows=ROWS,
        validation_rows=0,
        tokens=ROWS * length,
        supervised_tokens=ROWS * length,
        limit_tokens=length,
        longest_tokens=length,
        samples_per_epoch=ROWS,
    )


def measured(directory: Path | None) -> Seen | None:
    """The longest step and save of an earlier run. InputMissing where the directory holds none."""
    if directory is None:
        return None
    from loradock.training.run_dir import record

    file = directory / "metrics.jsonl"
    if not file.is_file():
        raise InputMissing(f"{directory} holds no metrics.jsonl of a run", hint="--from-run runs/NAME-001")
    return sizing.seen(record.parsed(file))
