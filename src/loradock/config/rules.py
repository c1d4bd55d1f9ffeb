"""Rules across keys: what cannot be trained as asked. Add one by writing a function and naming it in RULES.

A rule looks at a typed configuration and yields what is wrong; all rules run, so that every mistake is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loradock.catalog import engines
from loradock.catalog.objectives.preference import LOSSES
from loradock.config.places import NO_CREDENTIAL, has_credential
from loradock.config.schema import RunConfig
from loradock.config.sections.data import HUB_PREFIX, SourceConfig, parts_of
from loradock.config.sections.values import MOST
from loradock.text.suggest import did_you_mean

HubKind = Literal["models", "datasets"]


@dataclass(frozen=True, kw_only=True)
class KeyProblem:
    """What is wrong; `keys` are the dotted keys that it is about, the one to change first."""

    keys: tuple[str, ...]
    what: str
    hint: str | None = None


Rule = Callable[[RunConfig], Iterator[KeyProblem]]


def is_hub_model(name: str) -> bool:
    """True where a model name is a hub id (OWNER/NAME) and no local path."""
    return name.count("/") == 1 and not name.startswith((".", "/")) and not Path(name).exists()


def has_validation(config: RunConfig) -> bool:
    """True where some rows are held out or come from a separate file."""
    return bool(config.data.validation)


def _model_is_given(config: RunConfig) -> Iterator[KeyProblem]:
    if not config.model.name:
        yield KeyProblem(keys=("model.name",), what="no model", hint="give --model DIR or model.name")


def _data_are_given(config: RunConfig) -> Iterator[KeyProblem]:
    if not config.data.sources:
        yield KeyProblem(keys=("data.sources",), what="no data", hint="give --data FILE or data.sources")


def _output_is_a_directory(config: RunConfig) -> Iterator[KeyProblem]:
    if config.output == "-":
        what = "output is a directory, and - means standard output elsewhere"
        yield KeyProblem(keys=("output",), what=what, hint="--output ./- is one that is called -")


def _hub_ids_are_well_formed(config: RunConfig) -> Iterator[KeyProblem]:
    name = config.model.name
    if is_hub_model(name) and "@" in name:
        what = f"model.name {name} is not a local directory, and a hub id holds no commit"
        hint = "--model {} --set model.revision={}".format(*name.split("@", 1))
        yield KeyProblem(keys=("model.name", "model.revision"), what=what, hint=hint)
    for index, source in enumerate(config.data.sources):
        if not source.path.startswith(HUB_PREFIX):
            continue
        key, name = f"data.sources.{index}", parts_of(source.path)["path"].removeprefix(HUB_PREFIX)
        if name.count("/") != 1 or not all(name.split("/")):
            what = f"{key}.path {source.path} names no hub data set"
            yield KeyProblem(keys=(f"{key}.path",), what=what, hint="write hub:OWNER/NAME")


@dataclass(frozen=True, kw_only=True)
class HubId:
    """What is named on a hub: `name_key` is the dotted key of the name, `key` that of `commit`, if it has one."""

    kind: HubKind
    name: str
    name_key: str
    key: str
    commit: str | None

    @property
    def subject(self) -> str:
        """What needs a commit, for messages."""
        if self.kind == "models":
            return f"model.name {self.name} is not a local directory, and as a hub id it"
        return f"{self.name_key.removesuffix('.path')}: the hub data set {self.name}"

    @property
    def problem(self) -> KeyProblem:
        """Where nobody may ask the hub."""
        hint = f"--set {self.key}=COMMIT, which `hf {self.kind} info {self.name} --expand sha` prints"
        path = f", or ./{self.name} for the path of a directory" if self.kind == "models" else ""
        return KeyProblem(keys=(self.name_key, self.key), what=f"{self.subject} needs a commit", hint=hint + path)


def hub_ids(config: RunConfig) -> Iterator[HubId]:
    """What a configuration names on a hub."""
    base = config.model
    if is_hub_model(base.name):
        key = "model.revision"
        yield HubId(kind="models", name=base.name, name_key="model.name", key=key, commit=base.revision)
    for index, source in enumerate(config.data.sources):
        if source.path.startswith(HUB_PREFIX):
            key, name = f"data.sources.{index}", source.path.removeprefix(HUB_PREFIX)
            keys = {"name_key": f"{key}.path", "key": f"{key}.revision"}
            yield HubId(kind="datasets", name=name, commit=source.revision, **keys)


def _source_paths_and_keys_agree(config: RunConfig) -> Iterator[KeyProblem]:
    for index, source in enumerate(config.data.sources):
        key = f"data.sources.{index}"
        for name, value in source.contradictions.items():
            what = f"{key}.path {source.path} names {name} {value}, and {key}.{name} says {getattr(source, name)}"
            hint = f"say it once: --set {key}.path={parts_of(source.path)['path']}"
            yield KeyProblem(keys=(f"{key}.path", f"{key}.{name}"), what=what, hint=hint)


def _overlap_leaves_room(config: RunConfig) -> Iterator[KeyProblem]:
    overlap, length = config.data.overlap, config.data.max_length
    if length != "auto" and overlap and overlap >= length:
        what = f"data.overlap {overlap} leaves nothing to learn in windows of {length} tokens (data.max_length)"
        yield KeyProblem(keys=("data.overlap", "data.max_length"), what=what, hint=f"--set data.overlap={length // 8}")


def _addresses_hold_no_credential(config: RunConfig) -> Iterator[KeyProblem]:
    paths = {f"data.sources.{index}.path": source.path for index, source in enumerate(config.data.sources)}
    paths |= {f"data.validation.{part}".rstrip("."): path for part, path in config.data.validation_files.items()}
    for key, path in paths.items():
        if has_credential(path):
            what = f"{key}: the address holds a credential, and addresses are shown and recorded"
            yield KeyProblem(keys=(key,), what=what, hint=NO_CREDENTIAL)


def _held_out_hub_data_have_a_commit(config: RunConfig) -> Iterator[KeyProblem]:
    commits = {source.path: source.revision for source in config.data.sources}
    for part, path in config.data.validation_files.items():
        key, source = f"data.validation.{part}".rstrip("."), SourceConfig(path=path)
        if path.startswith(HUB_PREFIX) and not source.revision:
            commit = commits.get(source.path) or "COMMIT"
            inside = f"{source.configuration}/{source.split}" if source.configuration else source.split
            hint = f"--set {key}={source.path}@{commit}#{inside if '#' in path else 'validation'}"
            yield KeyProblem(keys=(key,), what=f"{key}: {path} needs a commit", hint=hint)


def _sources_are_distinct(config: RunConfig) -> Iterator[KeyProblem]:
    seen: dict[object, int] = {}
    for index, source in enumerate(config.data.sources):
        part = (source.path, source.configuration, source.split, source.revision, source.format)
        first = seen.setdefault(part, index)
        if first != index and source.path:
            what = f"data.sources.{index} repeats data.sources.{first}: rows could be both trained on and held out"
            hint = f"name it once, with weight: 2 (--set data.sources.{first}.weight=2)"
            yield KeyProblem(keys=(f"data.sources.{index}.path",), what=what, hint=hint)


def _remote_code_names_the_model(config: RunConfig) -> Iterator[KeyProblem]:
    trusted = config.model.trust_remote_code
    if trusted is not None and trusted != config.model.name:
        what = f'model.trust_remote_code "{trusted}" does not repeat model.name "{config.model.name}"'
        hint = f"--set model.trust_remote_code={config.model.name}, or delete the key"
        yield KeyProblem(keys=("model.trust_remote_code", "model.name"), what=what, hint=hint)


def _base_can_change(config: RunConfig) -> Iterator[KeyProblem]:
    if config.lora.init in ("pissa", "olora") and config.model.storage.is_quantised:
        what = f"lora.init {config.lora.init} changes the base weights, and {config.model.quantization} ones are fixed"
        hint = "--set model.quantization=none, or --set lora.init=default"
        yield KeyProblem(keys=("lora.init", "model.quantization"), what=what, hint=hint)


def _first_adapter_is_one(config: RunConfig) -> Iterator[KeyProblem]:
    if config.lora.adapter is not None and config.lora.init != "default":
        what = f"lora.adapter gives the first values, and lora.init {config.lora.init} others: one of them only"
        yield KeyProblem(keys=("lora.init", "lora.adapter"), what=what, hint="--set lora.init=default")


def _orthogonal_base_is_whole(config: RunConfig) -> Iterator[KeyProblem]:
    if config.lora.init == "orthogonal" and config.model.storage.is_quantised:
        what = f"lora.init orthogonal needs unquantised base weights, not {config.model.quantization} ones"
        hint = "--set model.quantization=none, or --set lora.init=default"
        yield KeyProblem(keys=("lora.init", "model.quantization"), what=what, hint=hint)


def _orthogonal_rank_is_even(config: RunConfig) -> Iterator[KeyProblem]:
    if config.lora.init != "orthogonal":
        return
    if config.lora.rank % 2:
        what = f"lora.init orthogonal needs an even lora.rank, not {config.lora.rank}"
        yield KeyProblem(keys=("lora.rank", "lora.init"), what=what, hint=f"--set lora.rank={config.lora.rank + 1}")
    for pattern, rank in config.lora.rank_pattern.items():
        if rank % 2:
            what = f"lora.init orthogonal needs even ranks, and lora.rank_pattern has {pattern}: {rank}"
            hint = f"--set 'lora.rank_pattern={{{pattern}: {rank + 1}}}'"
            yield KeyProblem(keys=("lora.rank_pattern", "lora.init"), what=what, hint=hint)


def _patterns_are_regular(config: RunConfig) -> Iterator[KeyProblem]:
    for key, patterns in (("rank_pattern", config.lora.rank_pattern), ("alpha_pattern", config.lora.alpha_pattern)):
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                what = f"lora.{key}: {pattern!r} is not a regular expression: {error}"
                yield KeyProblem(keys=(f"lora.{key}",), what=what, hint=f"--set 'lora.{key}={{q_proj: 8}}'")


def _targets_are_named(config: RunConfig) -> Iterator[KeyProblem]:
    targets = config.lora.targets
    if isinstance(targets, str):
        return
    if not targets or "" in targets:
        what = "lora.targets names no layer"
        yield KeyProblem(keys=("lora.targets",), what=what, hint="--set lora.targets=all-linear")
    yield from _repeated("lora.targets", targets)
    for module in sorted(set(targets) & set(config.lora.modules_to_save)):
        what = f"{module} is in lora.targets and in lora.modules_to_save: one of them only"
        yield KeyProblem(keys=("lora.modules_to_save", "lora.targets"), what=what, hint="delete it from one of them")


def _new_tokens_are_texts(config: RunConfig) -> Iterator[KeyProblem]:
    key, tokens = "tokenizer.add_tokens", config.tokenizer.add_tokens
    if not tokens:
        return
    yield from _repeated(key, tokens)
    if any(not token.strip() for token in tokens):
        yield KeyProblem(keys=(key,), what=f"{key} names an empty text", hint="delete it")
    if config.objective_spec.embeds:
        what = f"objective {config.objective} embeds texts, and its exports take plain LoRA: no rows of new tokens"
        yield KeyProblem(keys=(key, "objective"), what=what, hint=f"--set {key}=[]")
    if config.lora.init in ("pissa", "olora"):
        what = f"lora.init {config.lora.init} saves its adapter as a difference from the first, which rows do not have"
        yield KeyProblem(keys=(key, "lora.init"), what=what, hint="--set lora.init=default")


def _scaled_positions_have_a_factor(config: RunConfig) -> Iterator[KeyProblem]:
    model = config.model
    if model.rope_scaling != "off" and model.rope_factor == 1:
        what = f"model.rope_scaling {model.rope_scaling} stretches positions by model.rope_factor, which is 1"
        hint = "--set model.rope_factor=4 (data.max_length over the base's max_position_embeddings, rounded up)"
        yield KeyProblem(keys=("model.rope_factor", "model.rope_scaling"), what=what, hint=hint)


def _losses_can_be_added(config: RunConfig) -> Iterator[KeyProblem]:
    key, several = "preference.loss", config.preference.loss
    if several == {}:
        yield KeyProblem(keys=(key,), what=f"{key} names no loss", hint=f"--set '{key}={{dpo: 0.8, bco_pair: 0.2}}'")
    for name, weight in several.items() if isinstance(several, dict) else ():
        if name not in LOSSES:
            can_be = ", ".join(each for each, loss in LOSSES.items() if not loss.alone)
            hint = did_you_mean(name, LOSSES) or f"it is one of {can_be}"
            yield KeyProblem(keys=(key,), what=f"{key} adds {name}, which is not a loss", hint=hint)
        elif LOSSES[name].alone:
            what = f"{key} adds {name}, which is learned by alone: {LOSSES[name].alone}"
            yield KeyProblem(keys=(key,), what=what, hint=f"--set {key}={name}")
        elif not 0 < weight <= MOST:
            what = f"{key} adds {name} with the weight {weight:g}, which is not a number above 0 and at most {MOST:,}"
            yield KeyProblem(keys=(key,), what=what, hint=f"delete {name}, or give it a weight such as 0.2")


def _reward_head_is_alone(config: RunConfig) -> Iterator[KeyProblem]:
    """What sequence classification has no place for, or what would be saved as a difference from the first head."""
    if not config.objective_spec.has_head:
        return
    lora = config.lora
    settings = {
        "tokenizer.add_tokens": (config.tokenizer.add_tokens, "--set tokenizer.add_tokens=[]"),
        "lora.modules_to_save": (lora.modules_to_save, "--set lora.modules_to_save=[]"),
        "lora.init": (lora.init in ("pissa", "olora"), "--set lora.init=default"),
        "lora.adapter": (
            lora.adapter,
            "loradock merge RUN -o DIR makes a base of it, and --model DIR begins with that",
        ),
    }
    for key, (is_set, hint) in settings.items():
        if is_set:
            what = (
                f"{key} cannot be used with objective {config.objective}, whose head is all that is trained beside LoRA"
            )
            yield KeyProblem(keys=(key, "objective"), what=what, hint=hint)


def _trackers_are_distinct(config: RunConfig) -> Iterator[KeyProblem]:
    yield from _repeated("logging.trackers", config.logging.trackers)


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


def _repeated(key: str, names: tuple[str, ...]) -> Iterator[KeyProblem]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield KeyProblem(keys=(key,), what=f"{key} names {name} twice", hint="delete one")


INPUTS: tuple[Rule, ...] = (_model_is_given, _data_are_given)

RULES: tuple[Rule, ...] = (
    _output_is_a_directory,
    _hub_ids_are_well_formed,
    _source_paths_and_keys_agree,
    _overlap_leaves_room,
    _addresses_hold_no_credential,
    _held_out_hub_data_have_a_commit,
    _sources_are_distinct,
    _remote_code_names_the_model,
    _base_can_change,
    _first_adapter_is_one,
    _orthogonal_base_is_whole,
    _orthogonal_rank_is_even,
    _patterns_are_regular,
    _targets_are_named,
    _new_tokens_are_texts,
    _scaled_positions_have_a_factor,
    _losses_can_be_added,
    _reward_head_is_alone,
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
