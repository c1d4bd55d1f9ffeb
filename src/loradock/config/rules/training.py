"""Rules about steps, evaluations, and what computes them."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.catalog import engines
from loradock.config.rules.base import KeyProblem, Rule, repeated
from loradock.config.schema import RunConfig
from loradock.config.sections.data import SourceConfig


def has_validation(config: RunConfig) -> bool:
    """True where some rows are held out or come from a separate file."""
    return bool(config.data.validation)


def _trackers_are_distinct(config: RunConfig) -> Iterator[KeyProblem]:
    yield from repeated("logging.trackers", config.logging.trackers)


def _best_needs_validation(config: RunConfig) -> Iterator[KeyProblem]:
    asked = {
        "train.early_stopping": config.train.early_stopping,
        "checkpoints.keep_best": config.checkpoints.keep_best is True,
    }
    for key, value in asked.items():
        if value and not has_validation(config):
            what = f"{key} goes by the evaluation loss, and nothing is held out to evaluate on"
            yield KeyProblem(keys=(key, "data.validation"), what=what, hint="--set data.validation=0.1")


def _validation_is_a_part(config: RunConfig) -> Iterator[KeyProblem]:
    validation = config.data.validation
    key = ("data.validation",)
    trained = {(source.path, source.configuration, source.split) for source in config.data.sources}
    for file in config.data.validation_files.values():
        held_out = SourceConfig(path=file)
        if file.strip().endswith("%"):
            what = f'data.validation "{file}" is neither a number nor a file'
            yield KeyProblem(keys=key, what=what, hint="write a share: 0.1 for 10 %")
        elif (held_out.path, held_out.configuration, held_out.split) in trained:
            what = f"data.validation {file} is also trained on: the evaluation loss would mean nothing"
            yield KeyProblem(keys=(*key, "data.sources"), what=what, hint="--set data.validation=0.1 holds a part out")
    if isinstance(validation, float | int) and validation >= 1 and not float(validation).is_integer():
        what = f"data.validation must be a share below 1 or a whole number of rows, not {validation}"
        yield KeyProblem(keys=key, what=what, hint=f"--set data.validation={round(validation)}")


def _warmup_is_a_part(config: RunConfig) -> Iterator[KeyProblem]:
    warmup = config.train.warmup
    if warmup >= 1 and not float(warmup).is_integer():
        what = f"train.warmup must be a share below 1 or a whole number of steps, not {warmup}"
        yield KeyProblem(keys=("train.warmup",), what=what, hint=f"--set train.warmup={round(warmup)}")


def _micro_batch_fits(config: RunConfig) -> Iterator[KeyProblem]:
    micro, whole, least = config.train.micro_batch, config.step_samples, config.objective_spec.documents_together
    if micro != "auto" and micro < least:
        what = f"train.micro_batch {micro} holds no whole sample: {config.objective} has {least} documents in one"
        yield KeyProblem(keys=("train.micro_batch", "objective"), what=what, hint=f"--set train.micro_batch={least}")
    if micro != "auto" and micro > whole:
        documents = f" x {least} documents" if least > 1 else ""
        size = f"{config.batch_key} {whole // least}{documents}"
        what = f"train.micro_batch {micro} is larger than {size}, the samples of a whole step"
        hint = f"--set {config.batch_key}={-(-micro // least)}, or --set train.micro_batch=auto"
        yield KeyProblem(keys=("train.micro_batch", config.batch_key), what=what, hint=hint)


def _batch_is_enough(config: RunConfig) -> Iterator[KeyProblem]:
    spec = config.objective_spec
    if config.train.global_batch < spec.least_batch:
        what = f"train.global_batch {config.train.global_batch}: {spec.variant or spec.name} compares samples of a step"
        hint = f"--set train.global_batch={spec.least_batch} or more"
        yield KeyProblem(keys=("train.global_batch", "objective"), what=what, hint=hint)


def _metric_is_reported(config: RunConfig) -> Iterator[KeyProblem]:
    metric, reported = config.checkpoints.metric, config.objective_spec.metrics
    if metric not in reported:
        what = f"checkpoints.metric {metric} is not reported by objective {config.objective}: {', '.join(reported)}"
        yield KeyProblem(keys=("checkpoints.metric", "objective"), what=what, hint="--set checkpoints.metric=loss")


def _model_is_not_cut(config: RunConfig) -> Iterator[KeyProblem]:
    mode, choice = engines.MODES.get(config.train.parallel), engines.eligible(config.engine)
    is_cut = all(engine.is_sharding for engine in choice) or (mode and mode.cuts_state)
    if is_cut and config.objective_spec.needs_whole_model:
        what = f"objective {config.objective} is not trained on a model that is cut among GPUs"
        yield KeyProblem(
            keys=("train.parallel", "objective"), what=what, hint="--set train.parallel=ddp --set engine=auto"
        )


def _passages_are_compared(config: RunConfig) -> Iterator[KeyProblem]:
    if config.objective_spec.embeds and not config.embedding.in_batch and not config.embedding.negatives:
        what = "embedding.in_batch is off and embedding.negatives is 0: a query is compared with its positive alone"
        keys = ("embedding.in_batch", "embedding.negatives")
        yield KeyProblem(keys=keys, what=what, hint="--set embedding.in_batch=true")


def _deepspeed_has_a_use(config: RunConfig) -> Iterator[KeyProblem]:
    file, name = config.train.deepspeed, config.train.parallel
    mode = engines.MODES.get(name)
    if file is not None and not (mode and mode.zero_stage):
        what = f"train.deepspeed {file} configures DeepSpeed, and train.parallel {name} does not use it"
        hint = "--set train.parallel=zero2 (or zero3), or delete the key"
        yield KeyProblem(keys=("train.deepspeed", "train.parallel"), what=what, hint=hint)


def _flash_attention_can_run(config: RunConfig) -> Iterator[KeyProblem]:
    if config.model.attention != "flash_attention_2":
        return
    if config.device == "cpu":
        what = "model.attention flash_attention_2 runs on a GPU only, and device is cpu"
        yield KeyProblem(keys=("model.attention", "device"), what=what, hint="--set model.attention=auto")
    if config.model.compute_dtype == "float32":
        what = "model.attention flash_attention_2 computes in 16 bits only, and model.compute_dtype is float32"
        yield KeyProblem(keys=("model.attention", "model.compute_dtype"), what=what, hint="--set model.attention=sdpa")


RULES: tuple[Rule, ...] = (
    _trackers_are_distinct,
    _best_needs_validation,
    _validation_is_a_part,
    _warmup_is_a_part,
    _micro_batch_fits,
    _batch_is_enough,
    _metric_is_reported,
    _model_is_not_cut,
    _passages_are_compared,
    _deepspeed_has_a_use,
    _flash_attention_can_run,
)
