"""The ordered table of decisions. To add one: a module with `decide(question) -> Decision`, and its line here.

Order matters: a decision sees those above it in `question.decided`.
"""

from loradock.plan.context import Decide
from loradock.plan.knobs import (
    accumulation,
    attention,
    cadence,
    checkpointing,
    compilation,
    compute_dtype,
    cuda_graphs,
    dataloader,
    device,
    engine,
    kernels,
    micro_batch,
    optimizer,
    packing,
    parallel,
    steps,
    tf32,
    threads,
    weight_cache,
)

DECISIONS: tuple[Decide, ...] = (
    device.decide,
    compute_dtype.decide,
    parallel.decide,
    parallel.decide_cpu_offload,
    engine.decide,
    attention.decide,
    kernels.decide,
    packing.decide,
    checkpointing.decide,
    optimizer.decide,
    micro_batch.decide,
    checkpointing.decide_layers,
    weight_cache.decide,
    accumulation.decide,
    dataloader.decide,
    threads.decide,
    cuda_graphs.decide,
    tf32.decide,
    compilation.decide,
    steps.decide,
    cadence.decide,
)
