"""DeepSpeed's ZeRO: its settings and start, proof that it shards, and its state as whole as any backend's.

ZeRO-2 cuts gradients and optimiser state over the processes, ZeRO-3 the weights as well (Rajbhandari et al. 2020).
Checkpoints hold the adapter and its moments whole, so that a run continues in another mode, or on another number of
ranks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from loradock.catalog import engines
from loradock.errors import ConfigError, EnvironmentUnfit
from loradock.model.adapters import trainable
from loradock.plan.plan import Plan
from loradock.plan.zero_config import BUILD, INSTALL, STAGES, configuration
from loradock.training.job import Job

MOMENTS = ("exp_avg", "exp_avg_sq")
ALIGNMENT = 2
"""Numbers to whose multiple a process's part of the optimiser state is padded (DeepSpeed: four bytes for NCCL)."""


def stage_of(plan: Plan) -> int:
    """2 or 3; 0 where the plan shares the model in another way."""
    return STAGES.get(plan.parallel.value, 0)


def settings(job: Job) -> dict[str, Any]:
    """What DeepSpeed is given.

    Raises EnvironmentUnfit where DeepSpeed is not installed, ConfigError and InputMissing where the run cannot be as
    it was asked for.
    """
    stage, plan = stage_of(job.plan), job.plan
    mode = f"train.parallel zero{stage}"
    if plan.compute_dtype.value == "float16":
        raise ConfigError(
            f"{mode} computes in bfloat16 or float32, and the plan in float16", hint="--set model.compute_dtype=float32"
        )
    if plan.optimizer.value not in engines.of(plan.engine.value).optimizers:
        what = f"{mode} shards the two moments of AdamW in 32 bits, and {plan.optimizer.value} keeps others"
        raise ConfigError(what, hint="--set train.optimizer=adamw_fused")
    if plan.compile.value != "off":
        raise ConfigError(f"{mode} runs layers eagerly, and train.compile is on", hint="--set train.compile=off")
    made = configuration(job.config, plan, stage=stage)
    load()  # last: it takes seconds, and every rank is to come to the same end together
    return made


def started(model: Any, optimizer: Any, settings: dict[str, Any]) -> Any:
    """DeepSpeed's engine over a model and its optimiser."""
    with contextlib.redirect_stdout(sys.stderr):
        engine, *_ = load().initialize(model=model, optimizer=optimizer, config=settings)
    return engine


def load() -> Any:
    """The library, which writes to stderr alone. EnvironmentUnfit where it is not installed or does not start."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its log goes to the stdout of this moment
            import deepspeed  # pyright: ignore[reportMissingImports]
            from deepspeed.utils.logging import logger  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        what = "is not installed" if error.name == "deepspeed" else f"does not start: {error}"
        raise EnvironmentUnfit(
            f"train.parallel asks for DeepSpeed, which {what}", hint=f"{BUILD}; or here: {INSTALL}"
        ) from error
    logger.setLevel("WARNING")
    return deepspeed


@dataclass(frozen=True, kw_only=True)
class Share:
    """What this process holds: numbers of weights (NF4: two weights in one number), and of the adapter's float32."""

    stage: int
    processes: int
    weights: int
    local_weights: int
    trained: int
    local_trained: int

    def __str__(self) -> str:
        kept = f"{self.local_trained:,} of {self.trained:,} trained weights' float32 and moments"
        if self.stage == STAGES["zero3"]:
            kept += f", {self.local_weights:,} of {self.weights:,} numbers of all weights"
        return f"ZeRO-{self.stage} over {self.processes} processes; this one holds {kept}"


def verified(engine: Any, *, stage: int) -> Share:
    """What is really sharded, read off DeepSpeed's live engine. EnvironmentUnfit where the mode was replaced."""
    mode = f"zero{stage}"
    found = engine.zero_optimization_stage()
    if found != stage:
        raise replaced(mode, f"DeepSpeed's engine came out with ZeRO-{int(found)}")
    processes = torch.distributed.get_world_size()
    parameters, adapter = list(engine.module.parameters()), trainable(engine.module)
    share = Share(
        stage=stage,
        processes=processes,
        weights=sum(map(numbers_of, parameters)),
        local_weights=sum(getattr(each, "ds_tensor", each).numel() for each in parameters),
        trained=sum(map(numbers_of, adapter)),
        local_trained=sum(flat.numel() for flat in flats(engine.optimizer)),
    )
    padding = ALIGNMENT * processes * max(1, len(adapter))
    if share.local_trained > share.trained / processes + padding or share.local_trained <= 0:
        raise replaced(mode, f"the optimiser's state is not cut: {share}")
    if stage == STAGES["zero3"] and share.local_weights > share.weights / processes + len(parameters):
        raise replaced(mode, f"the weights are not cut: {share}")
    return share


def replaced(mode: str, what: str) -> EnvironmentUnfit:
    """The error where a mode was asked for and another one came out."""
    return EnvironmentUnfit(
        f"train.parallel {mode} was silently replaced: {what}",
        hint="scripts/run restores the locked packages; --set train.parallel=ddp trains without sharding",
    )


def numbers_of(parameter: Any) -> int:
    """Its numbers when it is whole."""
    return getattr(parameter, "ds_numel", parameter.numel())


def flats(zero: Any) -> list[torch.Tensor]:
    """This process's float32 parts that the optimiser updates, each a vector."""
    if hasattr(zero, "fp32_partitioned_groups_flat"):
        return list(zero.fp32_partitioned_groups_flat)
    return list(zero.single_partition_of_fp32_groups)


def gradient_norm(zero: Any) -> torch.Tensor:
    """The 2-norm of the step's whole gradient, float32, as DeepSpeed's own step finds it; inf where it is not finite.

    Every process takes part, and no gradient changes.
    """
    if hasattr(zero, "scaled_global_norm"):
        zero._wait_for_offload_copies()  # of gradients to the host, which the step waits for, too
        return zero.scaled_global_norm()
    return load().runtime.utils.combine_grad_norm_groups(zero._get_norm_groups())


class ZeroOptimizer:
    """DeepSpeed's optimiser as checkpoints know one: whole moments, a parameter an entry, in the trainer's groups.

    `groups` are the parameters of each group as the trainer made it, before DeepSpeed took them over.
    """

    def __init__(self, engine: Any, groups: Sequence[Sequence[Any]]) -> None:
        self.zero = engine.optimizer
        self.groups = groups
        self.parameters = [parameter for group in groups for parameter in group]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The live groups, whose settings the next step uses."""
        return self.zero.optimizer.param_groups

    def gathered(self) -> Gathered:
        """The whole state, on rank 0; every process takes part. Elsewhere it is empty."""
        utils = load().utils
        base, keeps = self.zero.optimizer, torch.distributed.get_rank() == 0
        steps = [values["step"] for values in base.state.values() if "step" in values]
        state: dict[int, dict[str, Any]] = {}
        for index, parameter in enumerate(self.parameters if steps else ()):
            whole = {name: utils.safe_get_full_optimizer_state(parameter, name) for name in MOMENTS}
            if keeps:
                # Clones: what is gathered lies in a padded buffer, all of which would be written.
                moments = {name: value.detach().cpu().clone() for name, value in whole.items()}
                state[index] = {"step": steps[0].detach().cpu().clone(), **moments}
        return Gathered({"state": state, "param_groups": self.described()})

    def described(self) -> list[dict[str, Any]]:
        """The groups' settings, with indices in the place of parameters; DeepSpeed has dropped the empty ones."""
        live = iter(self.param_groups)
        last: dict[str, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for group in self.groups:
            last = next(live) if group else {**last, "weight_decay": 0.0}
            settings = {key: value for key, value in last.items() if key != "params"}
            groups.append({**settings, "params": list(range(first, first + len(group)))})
            first += len(group)
        return groups

    def load_state_dict(self, whole: dict[str, Any]) -> None:
        """Take up this process's part of a whole state, which any engine may have given."""
        state = whole["state"]
        if not state:
            return
        base = self.zero.optimizer
        for flat in flats(self.zero):
            is_fused = bool(base.param_groups[0].get("fused"))
            step = torch.as_tensor(state[0]["step"], dtype=torch.float32).to(flat.device if is_fused else "cpu")
            moments = {name: torch.zeros_like(flat, requires_grad=False) for name in MOMENTS}
            base.state[flat] = {"step": step.clone(), **moments}
        for index, parameter in enumerate(self.parameters):
            for name in MOMENTS:
                put(self.zero, parameter, state[index][name], name=name)


@dataclass(frozen=True)
class Gathered:
    """A state that was gathered, for the files of a checkpoint."""

    whole: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        """As an optimiser gives it."""
        return self.whole


def put(zero: Any, parameter: Any, value: torch.Tensor, *, name: str) -> None:
    """Put this process's part of a whole moment (the parameter's shape, float32) into its place."""
    utils = load().utils
    if not hasattr(parameter, "ds_tensor"):
        zero._lazy_init_hp_params_optimizer_state()
        utils.safe_set_full_optimizer_state(parameter, value, name)
        return
    size, rank = parameter.ds_tensor.numel(), torch.distributed.get_rank()
    padded = torch.nn.functional.pad(value.flatten(), (0, size * torch.distributed.get_world_size() - value.numel()))
    utils.safe_set_local_optimizer_state(parameter, padded[rank * size : (rank + 1) * size], name)
