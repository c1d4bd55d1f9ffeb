"""Keys without effect: what the user set and another key makes idle. A warning each; add one to WARNINGS.

Each function looks at the configuration and yields findings whose first key is the idle one; only those are told whose
first key the user chose (a default or a preset's value is no surprise to anyone).
"""

from __future__ import annotations

from collections.abc import Iterator

from loradock.catalog import engines, optimizers, schedules
from loradock.catalog.objectives import OBJECTIVES, is_foreign, owners
from loradock.catalog.objectives.preference import LOSSES, OWN_KEYS
from loradock.config.rules import KeyProblem, Rule, has_validation, is_hub_model
from loradock.config.schema import RunConfig
from loradock.config.sections.data import HUB_PREFIX, SourceConfig
from loradock.config.sections.values import Section

HEX_DIGITS = frozenset("0123456789abcdef")
SHORTEST_COMMIT = 7


def _epochs(config: RunConfig) -> Iterator[KeyProblem]:
    if config.train.max_steps is not None:
        yield _idle("train.epochs", f"train.max_steps {config.train.max_steps} decides")


def _double_quant(config: RunConfig) -> Iterator[KeyProblem]:
    if not config.model.storage.scales:
        yield _idle("model.double_quant", f"only nf4 has scales to quantise, not {config.model.quantization}")


def _evaluation_cadence(config: RunConfig) -> Iterator[KeyProblem]:
    if not has_validation(config):
        yield _idle("evaluation.every", "nothing is held out (data.validation)")


def _split_seed(config: RunConfig) -> Iterator[KeyProblem]:
    if not has_validation(config):
        yield _idle("data.seed", "nothing is held out (data.validation)")
    elif config.data.validation_files:
        yield _idle("data.seed", "the validation rows come from files of their own")


def _tracker_project(config: RunConfig) -> Iterator[KeyProblem]:
    if not config.logging.trackers:
        yield _idle("logging.project", "logging.trackers names no tracker")


def _deterministic(config: RunConfig) -> Iterator[KeyProblem]:
    if config.device == "cpu" and config.deterministic is True:
        yield _idle("deterministic", "on the CPU reruns are identical anyway")


def _rope_factor(config: RunConfig) -> Iterator[KeyProblem]:
    if config.model.rope_scaling == "off":
        yield _idle("model.rope_factor", "model.rope_scaling is off")


def _thoughts(config: RunConfig) -> Iterator[KeyProblem]:
    if config.data.reasoning == "all_turns" and "rows" not in config.objective_spec.samples:
        yield _idle("data.reasoning", f"objective {config.objective} makes no several documents of a row")
    elif config.data.reasoning == "all_turns" and config.data.loss in ("completion", "all"):
        learned = "the last answer of each row alone" if config.data.loss == "completion" else "all that a row says"
        yield _idle("data.reasoning", f"all_turns is as_template where data.loss {config.data.loss} learns {learned}")


def _patterns(config: RunConfig) -> Iterator[KeyProblem]:
    lora = config.lora
    for key, values, value in (
        ("rank", lora.rank_pattern, lora.rank),
        ("alpha", lora.alpha_pattern, lora.alpha),
    ):
        if values and all(each == value for each in values.values()):
            yield _idle(f"lora.{key}_pattern", f"all that it names have lora.{key}, {value:g}, anyway")


def _tf32(config: RunConfig) -> Iterator[KeyProblem]:
    if config.device == "cpu" and config.train.tf32 is True:
        yield _idle("train.tf32", "TF32 is a format of GPUs, and device is cpu")


def _metric(config: RunConfig) -> Iterator[KeyProblem]:
    if not config.keeps_best and config.train.early_stopping is None:
        yield _idle("checkpoints.metric", "neither checkpoints.keep_best nor train.early_stopping asks for the best")


def _on_cpu(config: RunConfig) -> Iterator[KeyProblem]:
    if config.device == "cpu":
        for key in ("model.sdpa_kernel", "train.memory_fraction"):
            yield _idle(key, "it is about GPUs, and device is cpu")


def _kernels(config: RunConfig) -> Iterator[KeyProblem]:
    if config.model.kernels != "auto" and not any(engine.has_own_kernels for engine in engines.eligible(config.engine)):
        yield _idle("model.kernels", f"{engines.of(config.engine).title} computes with the model's own modules")


def _model_revision(config: RunConfig) -> Iterator[KeyProblem]:
    name, revision = config.model.name, config.model.revision
    if name and revision and not is_hub_model(name):
        yield _idle("model.revision", f"{name} is not a hub id")
    elif revision and not _is_commit(revision):
        what = f'model.revision "{revision}" is not a commit: a branch or tag can move'
        yield KeyProblem(keys=("model.revision",), what=what)


def _source_keys(config: RunConfig) -> Iterator[KeyProblem]:
    for index, source in enumerate(config.data.sources):
        key = f"data.sources.{index}"
        if not source.path.startswith(HUB_PREFIX):
            for name in ("revision", "configuration"):
                yield _idle(f"{key}.{name}", f"{source.path} is not a data set on the hub")
        elif source.revision and not _is_commit(source.revision):
            what = f'{key}.revision "{source.revision}" is not a commit: a branch or tag can move'
            yield KeyProblem(keys=(f"{key}.revision",), what=what)


def _held_out_revision(config: RunConfig) -> Iterator[KeyProblem]:
    for path in config.data.validation_files.values():
        source = SourceConfig(path=path)
        if source.path.startswith(HUB_PREFIX) and source.revision and not _is_commit(source.revision):
            what = f'data.validation: "{source.revision}" of {source.path} is not a commit: a branch or tag can move'
            yield KeyProblem(keys=("data.validation",), what=what)


def _long_warmup(config: RunConfig) -> Iterator[KeyProblem]:
    warmup, steps = config.train.warmup, config.train.max_steps
    if steps is not None and warmup >= steps and warmup >= 1:
        what = f"train.warmup {warmup:g} is not over before the last of {steps} steps: the peak rate is never reached"
        yield KeyProblem(keys=("train.warmup",), what=what)
        yield _idle("train.schedule", f"train.warmup lasts all of the {steps} steps")


def _schedule_keys(config: RunConfig) -> Iterator[KeyProblem]:
    for key in schedules.OWN_KEYS:
        readers = [name for name, schedule in schedules.SCHEDULES.items() if key in schedule.keys]
        if config.train.schedule not in readers:
            belongs = f"it belongs to train.schedule {', '.join(readers)}, and that is {config.train.schedule}"
            yield _idle(f"train.{key}", belongs)


def _optimizer_keys(config: RunConfig) -> Iterator[KeyProblem]:
    known = optimizers.named(config.train.optimizer)
    for key in optimizers.OWN_KEYS:
        if key not in known.hyperparameters.values():
            yield _idle(f"train.{key}", f"{known.title} does not have it")


def _early_stopping(config: RunConfig) -> Iterator[KeyProblem]:
    patience, every, steps = config.train.early_stopping, config.evaluation.every, config.train.max_steps
    if patience and steps and every != "auto" and patience * every >= steps:
        yield _idle("train.early_stopping", f"{patience} evaluations, one each {every} steps, outlast {steps} steps")


def _unused_mapping(config: RunConfig) -> Iterator[KeyProblem]:
    for index, source in enumerate(config.data.sources):
        if source.fields and all(name == column for name, column in source.fields.items()):
            yield _idle(f"data.sources.{index}.fields", "each field is mapped to itself")


def _overlap(config: RunConfig) -> Iterator[KeyProblem]:
    if config.data.long_rows != "split":
        yield _idle("data.overlap", f"data.long_rows is {config.data.long_rows}, so that no row is split")


def _objective_keys(config: RunConfig) -> Iterator[KeyProblem]:
    spec = config.objective_spec
    for key in (key for key in _own_keys(config) if is_foreign(key, spec)):
        names = [owner.name for owner in owners(key)]
        belongs = f"it belongs to objective {' and '.join(names)}, and objective is {spec.name}"
        yield _idle(key, f"{belongs} (--set objective={names[0]})")
    for key, reason in spec.without_effect.items():
        yield _idle(key, reason)


def _preference_keys(config: RunConfig) -> Iterator[KeyProblem]:
    names = config.preference.losses
    is_used = config.objective_spec.owns("preference.loss")
    if is_used and not any(engine.shares_prompts for engine in engines.eligible(config.engine)):
        yield _idle("preference.share_prompts", f"engine {config.engine} computes each answer with its prompt")
    if is_used and not config.plain_passes:
        yield _idle("preference.keep_reference", f"preference.loss {config.preference.formula} has no reference")
    for key in OWN_KEYS if is_used else ():
        if not any(key in LOSSES[name].keys for name in names):
            readers = [each for each, loss in LOSSES.items() if key in loss.keys]
            belongs = f"it belongs to preference.loss {', '.join(readers)}, and that is {config.preference.formula}"
            yield _idle(f"preference.{key}", belongs)


def _own_keys(config: RunConfig) -> list[str]:
    """The dotted keys that belong to some objectives alone."""
    names = dict.fromkeys(key for spec in OBJECTIVES.values() for key in spec.keys)
    sections: dict[str, Section] = {name: getattr(config, name.rstrip(".")) for name in names if name.endswith(".")}
    inside = [f"{name}{key}" for name, section in sections.items() for key in type(section).model_fields]
    return [*inside, *(name for name in names if name not in sections)]


def _idle(key: str, why: str) -> KeyProblem:
    return KeyProblem(keys=(key,), what=f"{key} has no effect: {why}")


def _is_commit(revision: str) -> bool:
    return len(revision) >= SHORTEST_COMMIT and set(revision.lower()) <= HEX_DIGITS


WARNINGS: tuple[Rule, ...] = (
    _epochs,
    _double_quant,
    _evaluation_cadence,
    _split_seed,
    _tracker_project,
    _deterministic,
    _rope_factor,
    _thoughts,
    _patterns,
    _tf32,
    _metric,
    _on_cpu,
    _kernels,
    _model_revision,
    _source_keys,
    _held_out_revision,
    _long_warmup,
    _schedule_keys,
    _optimizer_keys,
    _early_stopping,
    _unused_mapping,
    _overlap,
    _objective_keys,
    _preference_keys,
)
