"""The DeepSpeed configuration of a run: what the plan decides, and what a person's own file adds to it.

Names, defaults and meanings: DeepSpeed's configuration reference (deepspeed.ai/docs/config-json). One batch of
DeepSpeed's is one micro-batch of ours; it is signalled where a step ends, because packed steps differ in their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from loradock.catalog import optimizers
from loradock.catalog.engines import MODES
from loradock.config.load import leaves
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, InputMissing, Problem
from loradock.files import foreign_json, regular
from loradock.plan.plan import Plan
from loradock.text.suggest import did_you_mean

STAGES = {mode.name: mode.zero_stage for mode in MODES.values() if mode.zero_stage}
TRIED = "0.19.8"
"""The release that is locked; its partitions are read and written here, so another one counts as untried."""
BUILD = "loradock build --variant deepspeed"
INSTALL = "python -m pip install --require-hashes --no-deps --no-build-isolation -r docker/requirements-deepspeed.lock"
AUTO = "auto"
BUCKET_NUMBERS = 50_000_000
"""Of gradients reduced, or weights gathered, at a time: 200 MB in float32. DeepSpeed's own 500 million would reserve
2 GB for adapters that have fewer weights than that."""
WHOLE_NUMBERS = 16_384
"""A parameter with fewer stays whole on every process: norms do, whose gathering would cost more than they take; no
matrix of a model that has to be sharded does. DeepSpeed's own 100 000 would keep most adapters whole."""
LIVE_NUMBERS = 250_000_000
"""Of gathered weights at a time: a layer of a 70B model has 430 million weights, in NF4 half as many numbers."""

LOGS = ("comms_logger", "flops_profiler", "wall_clock_breakdown", "memory_breakdown", "steps_per_print", "dump_state")
"""Keys that say what is written about the training, which reads none of it back."""

PASSED_ON = (
    "zero_optimization",
    "zero_force_ds_cpu_optimizer",
    "aio",
    "communication_data_type",
    "data_types",
    "disable_allgather",
    "seq_parallel_communication_data_type",
    *LOGS,
)
"""Keys of a person's own file that the run takes over as they are."""

ELSEWHERE = {
    "scheduler": "--set train.schedule and train.warmup",
    "activation_checkpointing": "--set train.checkpointing=true",
    "tensorboard": "--set logging.trackers=[tensorboard]",
    "wandb": "--set logging.trackers=[wandb]",
    "csv_monitor": "metrics.jsonl holds every figure",
    "comet": "--set logging.trackers",
    "amp": "--set model.compute_dtype=bfloat16",
    "elasticity": "loradock train --resume takes up another number of processes",
    "data_efficiency": "--set data.sources orders rows",
    "curriculum_learning": "--set data.sources orders rows",
    "prescale_gradients": "gradients are averaged by supervised tokens over all processes",
    "gradient_predivide_factor": "gradients are averaged by supervised tokens over all processes",
    "zero_allow_untested_optimizer": "it is on already",
}
"""Keys that loradock decides by one of its own, or that its loop has no place for -> what to write instead."""


def configuration(config: RunConfig, plan: Plan, *, stage: int) -> dict[str, Any]:
    """What DeepSpeed is given: ours, with what the person's own file says besides.

    Raises InputMissing where the file is not there, ConfigError with every problem in it.
    """
    ours = made(config, plan, stage=stage)
    path = config.train.deepspeed
    if path is None:
        return ours
    settings = read(Path(path))
    problems_found = list(problems(settings, config, plan, stage=stage, file=path))
    if problems_found:
        raise ConfigError(
            f"{path} contradicts the run", hint="delete these keys, or follow each hint", problems=problems_found
        )
    return merged(ours, {key: value for key, value in given(settings).items() if key in PASSED_ON})


def said(path: Path) -> dict[str, Any]:
    """What a person's own file says that changes how a run computes. Raises as `read`."""
    return {key: value for key, value in given(read(path)).items() if key in PASSED_ON and key not in LOGS}


def made(config: RunConfig, plan: Plan, *, stage: int) -> dict[str, Any]:
    """The configuration that follows from the plan alone.

    Adapters stay float32 and products are made under torch's autocast, as in every other mode: with DeepSpeed's own
    bf16 mode the adapters would be copied to 16 bits. Nothing in it needs an operation that has to be compiled.
    """
    dtype = plan.compute_dtype.value
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": plan.device.value == "cuda",
        "contiguous_gradients": True,
        "reduce_bucket_size": BUCKET_NUMBERS,
        "allgather_bucket_size": BUCKET_NUMBERS,
    }
    if stage == STAGES["zero3"]:
        zero |= {
            "stage3_param_persistence_threshold": WHOLE_NUMBERS,
            "stage3_prefetch_bucket_size": BUCKET_NUMBERS,
            "stage3_max_live_parameters": LIVE_NUMBERS,
        }
    if plan.cpu_offload.value:
        loader = {"device": "cpu", "pin_memory": plan.device.value == "cuda"}
        zero |= {"offload_optimizer": loader} | ({"offload_param": loader} if stage == STAGES["zero3"] else {})
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.train.max_grad_norm,
        "optimizer": optimizer_section(config, plan),
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "torch_autocast": {
            "enabled": dtype != "float32",
            "dtype": f"torch.{dtype if dtype != 'float32' else 'bfloat16'}",
            "lower_precision_safe_modules": [],
        },
        "steps_per_print": 1_000_000_000,
    }


def optimizer_section(config: RunConfig, plan: Plan) -> dict[str, Any]:
    """The optimiser that DeepSpeed is handed, made: its type and parameters are what a person's own file may repeat."""
    known = optimizers.named(plan.optimizer.value)
    return {"type": known.kind, "params": json.loads(json.dumps(known.settings(config.train)))}


def read(path: Path) -> dict[str, Any]:
    """A DeepSpeed configuration as a person wrote it. ConfigError with the line where it is not a JSON object."""
    twice: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [key for key, _ in found]
        twice.extend(sorted({key for key in names if names.count(key) > 1}))
        return dict(found)

    try:
        text = regular.read_text(path)
        document = json.loads(text, object_pairs_hook=pairs)
    except OSError as error:
        raise InputMissing(
            f"train.deepspeed: {path} cannot be read: {error.strerror}", hint="--set train.deepspeed=null"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text", hint=f"file {path}") from error
    except json.JSONDecodeError as error:
        what = f"{foreign_json.fault(error)} at column {error.colno}"
        problem = Problem(what=what, file=str(path), line=error.lineno)
        raise ConfigError(f"{path} is not JSON", hint=f"python3 -m json.tool {path}", problems=[problem]) from error
    settings = as_object(document)
    if settings is None:
        raise ConfigError(f"{path} is not a JSON object", hint='write {"zero_optimization": {...}}')
    if twice:
        repeats = [Problem(what=f"{key} appears twice in one object", file=str(path)) for key in twice]
        raise ConfigError(f"{path} has a duplicate key", hint="delete one of each", problems=repeats)
    return settings


def problems(settings: Mapping[str, Any], config: RunConfig, plan: Plan, *, stage: int, file: str) -> Iterator[Problem]:
    """Every key that contradicts the run, does nothing in it, or is none of DeepSpeed's, each with its remedy."""
    values = given(settings)
    section = {"optimizer": values.pop("optimizer")} if "optimizer" in values else {}
    values |= {key: value for key, value in leaves(section).items() if value != {}}
    for key, (ours, remedy) in agreed(config, plan, values).items():
        if key in values and values[key] != ours:
            yield Problem(what=f"{key} is {json.dumps(values[key])}, and the run's is {ours}", file=file, hint=remedy)
    yield from dtype_problems(values, plan, file=file)
    zero = as_object(values.get("zero_optimization", {}))
    if zero is None:
        yield Problem(what="zero_optimization is not an object", file=file, hint='write {"stage": "auto"}')
    elif zero.get("stage", stage) != stage:
        what = f"zero_optimization.stage is {json.dumps(zero['stage'])}, and train.parallel is zero{stage}"
        remedy = f"--set train.parallel=zero{zero['stage']}" if zero["stage"] in STAGES.values() else 'write "auto"'
        yield Problem(what=what, file=file, hint=remedy)
    elif plan.cpu_offload.value and device_of(zero.get("offload_optimizer")) == "none":
        what = "zero_optimization.offload_optimizer.device is none, and train.cpu_offload is true"
        yield Problem(what=what, file=file, hint="--set train.cpu_offload=false")
    known = {*PASSED_ON, *ELSEWHERE, *agreed(config, plan, {}), *DTYPES}
    for key in values:
        if key in ELSEWHERE:
            yield Problem(what=f"{key} cannot be set in the DeepSpeed file", file=file, hint=ELSEWHERE[key])
        elif key not in known:
            section, _, name = key.rpartition(".")
            siblings = [key_known.rpartition(".")[2] for key_known in known if key_known.rpartition(".")[0] == section]
            hint = did_you_mean(name, siblings) or "delete it"
            yield Problem(what=f"unsupported DeepSpeed key: {key}", file=file, hint=hint)


def agreed(config: RunConfig, plan: Plan, values: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Key -> (the run's own value, what to type to have the file's). Written by a person, they have to be the same."""
    train, optimizer = config.train, optimizer_section(config, plan)
    hyperparameters = optimizers.named(plan.optimizer.value).hyperparameters

    def typed(key: str, ours: str) -> str:
        return f"--set {ours}={json.dumps(values[key], separators=(',', ':'))}" if key in values else ""

    return {
        "train_batch_size": (train.global_batch, typed("train_batch_size", "train.global_batch")),
        "train_micro_batch_size_per_gpu": (
            plan.micro_batch.value,
            typed("train_micro_batch_size_per_gpu", "train.micro_batch"),
        ),
        "gradient_accumulation_steps": (
            plan.accumulation.value,
            'write "auto": it follows from train.global_batch, train.micro_batch and the number of processes',
        ),
        "gradient_clipping": (train.max_grad_norm, typed("gradient_clipping", "train.max_grad_norm")),
        "optimizer.type": (optimizer["type"], f'write "{optimizer["type"]}"'),
        **{
            f"optimizer.params.{name}": (optimizer["params"][name], typed(f"optimizer.params.{name}", f"train.{key}"))
            for name, key in hyperparameters.items()
        },
    }


DTYPES = {"bf16": "bfloat16", "fp16": "float16", "bfloat16": "bfloat16", "torch_autocast": ""}
"""Sections that say in which dtype products are made."""


def dtype_problems(values: Mapping[str, Any], plan: Plan, *, file: str) -> Iterator[Problem]:
    """Sections that switch on another dtype than the plan's."""
    ours = plan.compute_dtype.value
    for key, dtype in DTYPES.items():
        section = as_object(values.get(key))
        if section is None or section.get("enabled") is not True:
            continue
        setting = dtype or str(section.get("dtype", "")).removeprefix("torch.")
        if setting != ours:
            what = f"{key} asks for {setting or 'a dtype of its own'}, and the run computes in {ours}"
            yield Problem(what=what, file=file, hint=f"--set model.compute_dtype={setting or ours}")


def given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a file really says: every "auto" left out, as transformers' users write for "what the run says"."""
    return {
        key: value if section is None else given(section)
        for key, value in settings.items()
        if value != AUTO and value is not None
        for section in [as_object(value)]
    }


def merged(ours: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Both, section by section; where both say something, the person's own word holds."""
    result = dict(ours)
    for key, value in settings.items():
        base, section = as_object(result.get(key)), as_object(value)
        result[key] = value if base is None or section is None else merged(base, section)
    return result


def device_of(offload: Any) -> str | None:
    """The device of an offload section, where it names one."""
    section = as_object(offload)
    return section.get("device") if section is not None else None


def as_object(value: Any) -> dict[str, Any] | None:
    """A JSON object; None for any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
