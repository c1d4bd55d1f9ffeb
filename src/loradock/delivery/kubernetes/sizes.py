"""How much a run is given of everything, with the reason of each figure: from its plan, and from an earlier run. Pure.

What no plan knows is assumed and says so. Memory and storage are limits that the kernel or the kubelet enforces, so
they are rounded up; time limits are far above what is expected, since they only end what would never end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loradock.config.schema import RunConfig
from loradock.delivery.kubernetes.quantities import GIB, MIB, shown, up_to_gib
from loradock.facts import Facts, ModelFacts
from loradock.plan.audit.prediction import COMMIT_SECONDS, COMMIT_SECONDS_A_BYTE, predicted
from loradock.plan.memory import LOADER_MOST_WORKERS, LOADER_PREFETCH
from loradock.plan.plan import Plan
from loradock.plan.planner import context_of, host_bytes

LIBRARIES_BYTES = 4 * GIB
"""Of one process with CUDA and all libraries before any model is there; env-check asks for as much."""
PAGES_SHARE, MOST_PAGES_BYTES = 0.25, 16 * GIB
"""Room for the pages of the weights' files while they are read; the kernel takes pages back, so a part is enough."""
CPU_SHARE = 0.9
SPARE_MEMORY = 1.25
TOKEN_BYTES = 8 * 4
NCCL_BYTES = 32 * MIB
LEAST_SHM_BYTES = 256 * MIB
HELPER_CPUS, CPUS_WITHOUT = 2, 2
"""Beside loader workers: the thread that steps, and the helpers of CUDA and NCCL. Without a GPU: all train."""
SCRATCH_BYTES = 8 * GIB
UNKNOWN_MODEL_BYTES = 64 * GIB
LOGS_BYTES = GIB
CHECKPOINT_BYTES_A_WEIGHT = 12
LEAST_GRACE_SECONDS, SPARE_SECONDS = 120, 10
UNKNOWN_STEP_SECONDS = 60
SLOW_STORAGE = 4
SILENCE_SECONDS = 300
START_SECONDS, GATHERING_SECONDS = 1800, 3600


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A figure and the reason for it; where a person gave it, `instead_of` the one that would have been taken."""

    value: int
    why: str
    instead_of: Sized | None = None

    def or_asked(self, value: int | None) -> Sized:
        """What a person gave, where they gave one."""
        return self if value is None else Sized(value=value, why="asked for", instead_of=self)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What one pod is given. `silence_seconds`: how old a heartbeat may grow, 0 for ever."""

    gpus: Sized
    cpus: Sized
    memory_bytes: Sized
    storage_bytes: Sized
    shm_bytes: Sized
    scratch_bytes: Sized
    output_bytes: Sized
    grace_seconds: Sized
    silence_seconds: Sized
    start_seconds: Sized

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """JSON-able: each figure with its reason."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an earlier run of the same kind took at most; None where it recorded none."""

    step_seconds: float | None = None
    save_seconds: float | None = None


def seen(metrics: Iterable[Mapping[str, Any]]) -> Seen:
    """The longest step and save in the lines of a run's metrics.jsonl; a line may stand for several steps."""
    steps: list[float] = []
    saves: list[float] = []
    last = 0
    for line in metrics:
        if line["kind"] == "train":
            steps.append(line["seconds"] / max(1, line["step"] - last))
            last = line["step"]
        elif line["kind"] == "checkpoint":
            saves.append(line.get("commit_seconds", line["seconds"]))  # a signal waits for the whole commit
    return Seen(step_seconds=max(steps, default=None), save_seconds=max(saves, default=None))


def sizes(
    config: RunConfig,
    facts: Facts,
    *,
    model: ModelFacts | None,
    plan: Plan | None,
    nodes: int = 1,
    earlier: Seen | None = None,
    has_claim: bool = True,
    downloads: bool = False,
    fetched_bytes: int = 0,
    asked: Mapping[str, int | None] | None = None,
) -> Sizes:
    """The sizes of one pod on one machine (`facts`), whose processes are `facts.processes_here`.

    `model` and `plan` are None where the model's files, or the GPU, are not known. `has_claim`: the output lies on a
    volume of its own; `downloads`: the base is fetched into the scratch; `fetched_bytes`: as much
    is fetched into an empty volume. `asked`: figures by name that a person gave.
    """
    amounts = asked or {}
    shm = _shm(config, facts, plan).or_asked(amounts.get("shm_bytes"))
    output = _output(config, model, has_claim=has_claim)
    scratch = _scratch(model, downloads=downloads).or_asked(amounts.get("scratch_bytes"))
    return Sizes(
        gpus=Sized(value=len(facts.gpus), why="a process each" if facts.gpus else "none was asked for"),
        cpus=_cpus(config, facts).or_asked(amounts.get("cpus")),
        memory_bytes=_memory(config, facts, model, plan, shm=shm).or_asked(amounts.get("memory_bytes")),
        storage_bytes=_storage(scratch, output, fetched_bytes),
        shm_bytes=shm,
        scratch_bytes=scratch,
        output_bytes=output,
        grace_seconds=_grace(config, facts, plan, earlier or Seen()).or_asked(amounts.get("grace_seconds")),
        silence_seconds=_silence(config),
        start_seconds=_start(nodes),
    )


def cpus_of(config: RunConfig, *, gpus: int) -> int:
    """Processors of a machine with so many GPUs."""
    return gpus * (loader_workers(config) + HELPER_CPUS) if gpus else CPUS_WITHOUT


def _cpus(config: RunConfig, facts: Facts) -> Sized:
    if not facts.gpus:
        return Sized(value=CPUS_WITHOUT, why="no GPU: the processors train")
    why = f"{loader_workers(config)} loader worker(s) of each process, its step, and a helper of CUDA and NCCL"
    return Sized(value=cpus_of(config, gpus=len(facts.gpus)), why=why)


def loader_workers(config: RunConfig) -> int:
    """Of one process that feeds a GPU: those asked for, else the most that a plan takes."""
    setting = config.train.workers
    return LOADER_MOST_WORKERS if setting == "auto" else setting


def _memory(config: RunConfig, facts: Facts, model: ModelFacts | None, plan: Plan | None, *, shm: Sized) -> Sized:
    libraries = LIBRARIES_BYTES * facts.processes_here
    parts = [f"{shown(libraries)} for the libraries of {facts.processes_here} process(es)"]
    need = float(libraries + shm.value)
    if not facts.gpus and plan is not None:
        training = int(plan.memory_bytes["total"] / CPU_SHARE)
        need += training
        parts.append(f"{shown(training)} by the plan")
    elif model is not None:
        weights = weight_files_bytes(model)
        pages = int(min(weights * PAGES_SHARE, MOST_PAGES_BYTES))
        need += pages
        parts.append(f"{shown(pages)} for pages of {shown(weights)} of weights")
    else:
        need += MOST_PAGES_BYTES
        parts.append(f"{shown(MOST_PAGES_BYTES)} for pages of a base that is not here to be measured")
    offloaded = host_bytes(plan, config, facts=facts) * facts.processes_here if plan is not None else 0
    if offloaded:
        need += offloaded
        parts.append(f"{shown(offloaded)} for what does not fit the GPU(s) (cpu_offload)")
    why = " + ".join([*parts, f"{shown(shm.value)} of /dev/shm"])
    return Sized(value=up_to_gib(need * SPARE_MEMORY), why=f"{why}, and a quarter more")


def weight_files_bytes(model: ModelFacts) -> int:
    """Of the base's files; where only its config.json is here, 16 bits a weight."""
    return model.weights_bytes or 2 * model.parameters


def _shm(config: RunConfig, facts: Facts, plan: Plan | None) -> Sized:
    """Twice what the data loader's workers hold at once and NCCL's buffers."""
    workers = (plan.dataloader.value.workers if plan else loader_workers(config)) * facts.processes_here
    length = plan.data.limit_tokens if plan else 1024
    rows = math.ceil(config.step_samples / facts.world_size)
    loader = workers * (LOADER_PREFETCH + 1) * rows * length * TOKEN_BYTES
    nccl = NCCL_BYTES * len(facts.gpus) if len(facts.gpus) > 1 else 0
    size = max(LEAST_SHM_BYTES, GIB if facts.gpus else 0, 2 * (loader + nccl))
    why = f"twice {shown(loader)} of {workers} loader worker(s) and {shown(nccl)} of NCCL, at least"
    least = "1Gi with GPUs" if facts.gpus else shown(LEAST_SHM_BYTES)
    return Sized(value=math.ceil(size / MIB) * MIB, why=f"{why} {least}; without the volume it is 64Mi")


def _output(config: RunConfig, model: ModelFacts | None, *, has_claim: bool) -> Sized:
    """Zero where the output lies on a volume of its own."""
    if has_claim:
        return Sized(value=0, why="the output has a volume of its own")
    weights = model.adapter_parameters(config.lora.rank) if model else 0
    copies = config.checkpoints.keep + 1 + int(config.keeps_best)
    need = weights * (CHECKPOINT_BYTES_A_WEIGHT * copies + 4)
    why = f"{copies} checkpoints of {weights:,} trained weights and the adapter; gone with the pod"
    return Sized(value=max(GIB, up_to_gib(need)), why=why)


def _scratch(model: ModelFacts | None, *, downloads: bool) -> Sized:
    why = f"{shown(SCRATCH_BYTES)} for prepared rows and compiled kernels (assumed)"
    if not downloads:
        return Sized(value=SCRATCH_BYTES, why=why)
    fetched = up_to_gib(weight_files_bytes(model)) if model else UNKNOWN_MODEL_BYTES
    return Sized(value=SCRATCH_BYTES + fetched, why=f"{why} + {shown(fetched)} for the base that is fetched")


def _storage(scratch: Sized, output: Sized, fetched_bytes: int) -> Sized:
    parts = {"of scratch": scratch.value, "of output": output.value, "of fetched data": fetched_bytes}
    parts["for logs"] = LOGS_BYTES
    why = " + ".join(f"{shown(size)} {what}" for what, size in parts.items() if size)
    return Sized(value=sum(parts.values()), why=why)


def _grace(config: RunConfig, facts: Facts, plan: Plan | None, earlier: Seen) -> Sized:
    step, step_why = earlier.step_seconds, "seen"
    if step is None and plan is not None:
        step, step_why = predicted(context_of(plan, config, facts=facts)).step, "predicted"
    if step is None:
        step, step_why = UNKNOWN_STEP_SECONDS, "assumed"
    save, save_why = earlier.save_seconds, "seen"
    if save is None and plan is not None:
        size = CHECKPOINT_BYTES_A_WEIGHT * plan.model.adapter_parameters(config.lora.rank)
        save = SLOW_STORAGE * (COMMIT_SECONDS + COMMIT_SECONDS_A_BYTE * size)
        save_why = f"predicted, {SLOW_STORAGE} times a local disk's"
    if save is None:
        save, save_why = UNKNOWN_STEP_SECONDS, "assumed"
    seconds = max(LEAST_GRACE_SECONDS, math.ceil(step + save + SPARE_SECONDS))
    why = f"longest step {step:.1f} s ({step_why}) + save {save:.1f} s ({save_why}) + {SPARE_SECONDS} s"
    return Sized(value=seconds, why=f"{why}, at least {LEAST_GRACE_SECONDS} s")


def _silence(config: RunConfig) -> Sized:
    limits = config.limits
    seconds = (limits.setup_seconds, limits.step_seconds, limits.save_seconds)
    if 0 in seconds:
        return Sized(value=0, why="a limit of the run is 0: it may be silent for ever, so nothing kills it")
    longest = math.ceil(max(seconds))
    why = f"the run ends itself with 82 after {longest} s of silence (limits.*); this is for what it cannot end"
    return Sized(value=longest + SILENCE_SECONDS, why=why)


def _start(nodes: int) -> Sized:
    if nodes > 1:
        return Sized(value=GATHERING_SECONDS, why="environment checks, and until the pods of all nodes have come")
    return Sized(value=START_SECONDS, why="imports and environment checks, before the first heartbeat")
