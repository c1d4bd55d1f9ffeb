"""Memory for the model: the configured base, adapter and longest row against the GPU, or the CPU's memory.

A first estimate, by the same arithmetic as the plan's, before any row is read: so the longest row is the longest that
the configuration allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from loradock.catalog import optimizers
from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.model.refusal import refusal
from loradock.env_check.remedies import from_hint, train_with
from loradock.errors import EnvironmentUnfit, LoradockError, OutOfMemory
from loradock.facts import DataFacts, Facts, ModelFacts
from loradock.machine import Host
from loradock.model import hub_cache
from loradock.plan.memory.base import planned_weights
from loradock.text.suggest import named_by

if TYPE_CHECKING:
    from loradock.config.schema import RunConfig
    from loradock.model.source import BaseModel

SHORTEST_ROW = 64
LOOKED_AT = ("device", "compute_dtype", "parallel", "cpu_offload", "engine", "attention")


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The model is built without weights, so that layers and targets are counted and not guessed."""
    assert plan.config is not None
    from loradock.model import lengths

    config = plan.config
    try:
        model = plan.base_facts or counted(host, config)
    except LoradockError as wrong:
        return refusal(wrong, remedy=remedy_for(wrong, config, facts))
    if model is None:
        return [ok("not estimated: the model's files are not all here")]
    try:
        length = lengths.longest_row(config.data.max_length, model)
        launched, warnings = as_launched(config, facts)
        findings = judge(config, facts=launched, model=model, length=length, on_gpu=plan.uses_gpu(facts))
        return [*findings, *warnings]
    except LoradockError as wrong:
        return refusal(wrong, remedy=remedy_for(wrong, config, facts))


def is_known(plan: Intent) -> bool:
    """Whether the base was looked at before, and is as it was."""
    return plan.base_facts is not None


def counted(host: Host, config: RunConfig) -> ModelFacts | None:
    """The base's facts, None where its files are not all here. Raises ModelError for one that cannot be trained."""
    from loradock.model import shape

    base = find(host, config)
    return shape.inspect(base, config) if base else None


def as_launched(config: RunConfig, facts: Facts) -> tuple[Facts, list[Finding]]:
    """The machine with the processes that the run asks for; a warning where there is only this one so far."""
    from loradock.plan.knobs import parallel

    asked_for = parallel.asks_for_several(config)
    if not asked_for or facts.world_size > 1:
        return facts, []
    count = max(2, len(facts.gpus))
    what = f"{asked_for} shards the model over several ranks, and this is one process: checked for {count} here"
    remedy = f"loradock launch --nproc {count} train ..."
    return replace(facts, world_size=count, local_world_size=count), [warning(what, remedy=remedy)]


def find(host: Host, config: RunConfig) -> BaseModel | None:
    """The base where all its files are here; nothing is fetched. Raises ModelError for one that cannot be trained."""
    from loradock.model import source

    model = config.model
    directory = hub_cache.directory_of(model.name, model.revision, environ=host.environ)
    if directory is None:
        return None
    try:
        source.check_files(directory)
    except LoradockError:
        return None
    trusted = str(directory) if model.trust_remote_code == model.name else None
    local = {"name": str(directory), "revision": None, "trust_remote_code": trusted}
    return source.find(model.model_copy(update=local))


def remedy_for(wrong: LoradockError, config: RunConfig, facts: Facts) -> str:
    """The command for what a room below refuses: by its own hint where that is a setting, else by what it is about."""
    if by_hint := from_hint(wrong.hint):
        return by_hint
    if wrong.what.startswith("device is cuda"):
        return "docker run --gpus all ..." if facts.in_container else "loradock env-check --only gpu"
    if wrong.what.startswith("LoRA targets"):
        return train_with(f"lora.targets={nearest(wrong, config.lora.targets) or 'all-linear'}")
    if wrong.what.startswith("lora.modules_to_save"):
        return train_with(f"lora.modules_to_save={nearest(wrong, config.lora.modules_to_save) or '[]'}")
    if "needs Python code" in wrong.what:
        return train_with(f"model.trust_remote_code={config.model.name}")
    return train_with("model.name=DIR")


def nearest(wrong: LoradockError, setting: str | Sequence[str]) -> str | None:
    """The names asked for as a list in YAML, each unknown one replaced by the nearest; None where one has none near."""
    hints = [
        next((problem.hint or "" for problem in wrong.problems if repr(name) in problem.what), name) for name in setting
    ]
    names = dict.fromkeys(named_by(hint) or hint for hint in hints)
    return f"[{', '.join(names)}]" if all(names) else None


def judge(config: RunConfig, *, facts: Facts, model: ModelFacts, length: int, on_gpu: bool) -> list[Finding]:
    """One row of `length` tokens; shorter rows may fit where it does not. Raises what the decisions raise."""
    need, have, parts = expected(config, facts=facts, model=model, length=length)
    place = facts.gpu.name if on_gpu else "the CPU's memory"
    rows = config.train.micro_batch if isinstance(config.train.micro_batch, int) else 1
    pass_text = f"{rows} x {length} tokens"
    figures = {"needed_bytes": need, "available_bytes": have, "weights_bytes": planned_weights(parts)}
    if need <= have:
        return [ok(f"{pass_text} of {model.architecture} fit on {place}", **figures)]
    shortest, _, _ = expected(config, facts=facts, model=model, length=min(SHORTEST_ROW, length))
    sizes = f"about {need / 2**30:.1f} GiB of {have / 2**30:.0f} to plan with"
    what = f"{pass_text} of {model.architecture} do not fit on {place}: {sizes}"
    remedy = remedy_of(config, facts=facts, model=model, length=length)
    if shortest <= have and config.train.packing is not True:
        return [warning(what, remedy=remedy, **figures)]
    return [error(what, remedy=remedy, ends=OutOfMemory if on_gpu else EnvironmentUnfit, **figures)]


def expected(config: RunConfig, *, facts: Facts, model: ModelFacts, length: int) -> tuple[int, int, dict[str, int]]:
    """(bytes needed, bytes to plan with, the needed by component), with all that saves memory and is not ruled out."""
    from loradock.plan import planner
    from loradock.plan.context import Context
    from loradock.plan.plan import Decision, draft

    rows = DataFacts(
        train_rows=1,
        validation_rows=0,
        tokens=length,
        supervised_tokens=length,
        limit_tokens=length,
        longest_tokens=length,
        samples_per_epoch=1,
    )
    packing = Decision(name="packing", value=config.train.packing is True, why="as asked, or not")
    context = planner.decided(
        LOOKED_AT, Context(config=config, facts=facts, model=model, data=rows, plan=draft([packing]))
    )
    optimizer = config.train.optimizer
    if optimizer == "auto":
        is_small = context.on_gpu and optimizers.SMALLEST.name in context.engine.optimizers
        optimizer = (optimizers.SMALLEST if is_small else optimizers.DEFAULT).name
    micro_batch = config.train.micro_batch
    parts = context.expected_bytes(
        micro_batch=micro_batch if isinstance(micro_batch, int) else 1,
        checkpointing=config.train.checkpointing is not False,
        optimizer=optimizer,
    )
    return parts["total"], context.memory_bytes, parts


def remedy_of(config: RunConfig, *, facts: Facts, model: ModelFacts, length: int) -> str:
    """The first change that makes it fit, the ones that change no result first; else a smaller model."""
    for keys, changed, shorter in changes(config, length):
        need, have, _ = expected(changed, facts=facts, model=model, length=shorter)
        if need <= have:
            return train_with(*keys)
    return train_with("model.name=DIR")


def changes(config: RunConfig, length: int) -> Iterator[tuple[list[str], RunConfig, int]]:
    """What to type, the configuration that it gives, and the longest row: each step keeps those before it."""
    keys: list[str] = []
    for section, key, value in (
        ("train", "micro_batch", 1),
        ("train", "checkpointing", True),
        ("train", "optimizer", "auto"),
        ("model", "quantization", "nf4"),
    ):
        current = getattr(getattr(config, section), key)
        if current not in (value, "auto"):
            part = getattr(config, section).model_copy(update={key: value})
            config = config.model_copy(update={section: part})
            keys.append(f"{section}.{key}={str(value).lower()}")
            yield keys, config, length
    while length // 2 >= SHORTEST_ROW:
        length //= 2
        yield [*keys, f"data.max_length={length}"], config, length


CHECK = Check(
    name="model-memory",
    group="model",
    proves="The base model, its adapter and one row of data.max_length fit in the GPU's memory, or in the CPU's.",
    look=look,
    level="compute",
    needs="config",
    needs_no_torch=is_known,
    limit_seconds=90,
)
