"""The engines: what each has, and what it cannot do."""

from __future__ import annotations

from loradock.catalog.engines.base import Engine
from loradock.catalog.engines.modes import ALONE, DDP, FSDP, PLAIN, ZERO2, ZERO3

FAST = Engine(
    name="fast",
    title="the fast engine",
    computed_by="fast.backend:FastBackend",
    modes=(ALONE, DDP),
    fallback="peft",
    dropout_masks="by step and token",
    cannot={
        "decoder": "it has no family for {model.decoder}",
        "recurrence": "some of its layers keep a state from token to token",
        "remote code": "the model runs code of its own",
        "peculiarity": "{model.peculiarity}",
        "outlier columns": "its matrices are NF4 or unquantised, not int8",
        "several ranks": "with dropout, adapters of one input have one rank, and lora.rank_pattern gives several",
        "loss_sum": "objective {config.objective} computes a loss of its own",
        "compile": "its own kernels leave nothing to compile",
        **PLAIN,
    },
    plans_shapes=True,
    recomputes_any_count=True,
    always_packs=True,
    has_own_kernels=True,
    has_cuda_graphs=True,
    has_cached_layers=True,
    shares_prompts=True,
)
PEFT = Engine(
    name="peft",
    title="the peft backend",
    computed_by="peft.backend:PeftBackend",
    modes=(ALONE, DDP),
    former_name="trl",
    has_compile=True,
)
SHARDED = Engine(
    name="fsdp",
    title="FSDP",
    computed_by="fsdp.backend:FsdpBackend",
    modes=(FSDP,),
    reason="the model is sharded by FSDP",
    former_name="sharded",
    recomputes_any_count=True,
)
# The state of these has a moment for each weight, so that it can be gathered; sharding makes eight bits needless.
ZERO = Engine(
    name="zero",
    title="DeepSpeed",
    computed_by="zero.backend:ZeroBackend",
    modes=(ZERO2, ZERO3),
    reason="train.parallel {mode} is DeepSpeed's",
)
