"""The table of arms. To add one: its line here; to add a kind: a module with `main`, run as `python -m`, too.

A kind's process is given one argument, the JSON file of a `base.Task`, and says what it does in lines of JSON on
stdout (`base.Report`). An arm's settings are read by its kind alone.
"""

from __future__ import annotations

from bench.train.arms.base import Arm

OPTIMISATIONS = {
    "cache": "model.cache_weights=0",
    "kernels": "model.kernels=torch",
    "graphs": "train.cuda_graphs=false",
    "dropout": "lora.dropout=0",
    "packing": "train.packing=false",
}
"""What can be switched off in our engine, one key each: every line becomes an arm `ours-without-NAME`."""

FAST = "engine=fast"

ARMS: dict[str, Arm] = {
    "trl-vanilla": Arm(kind="trl", about="padded batches of 8, gradient checkpointing: TRL's defaults, in bfloat16"),
    "trl-best": Arm(
        kind="trl",
        about="padding-free, no checkpointing, fused AdamW, the largest micro-batch",
        settings={"batch": "padding-free", "checkpointing": False},
    ),
    "trl-packing": Arm(
        kind="trl",
        about="TRL's own packing, in an order of its own, no checkpointing",
        settings={"batch": "packing", "checkpointing": False},
    ),
    "trl-liger": Arm(
        kind="trl",
        about="trl-best with Liger's kernels",
        settings={"batch": "padding-free", "checkpointing": False, "liger": True},
    ),
    "trl-text": Arm(
        kind="trl",
        about="trl-best which tokenises the rows itself: for the time to the first step",
        settings={"batch": "padding-free", "checkpointing": False, "reads": "text"},
    ),
    "unsloth": Arm(kind="unsloth", about="unsloth's defaults: its own checkpointing, batches of 8"),
    "unsloth-best": Arm(
        kind="unsloth",
        about="padding-free, no checkpointing, fused AdamW, the largest micro-batch",
        settings={"batch": "padding-free", "checkpointing": False},
    ),
    "ours": Arm(kind="loradock", about="the fast engine, nothing tuned", settings={"set": [FAST]}),
    "ours-graphs": Arm(
        kind="loradock",
        about="the fast engine with micro-steps replayed from CUDA graphs",
        settings={"set": [FAST, "train.cuda_graphs=true"]},
    ),
    "ours-trl": Arm(kind="loradock", about="our reference engine, nothing tuned", settings={"set": ["engine=peft"]}),
    **{
        f"ours-without-{name}": Arm(
            kind="loradock", about=f"the fast engine with {switch}", settings={"set": [FAST, switch]}
        )
        for name, switch in OPTIMISATIONS.items()
    },
}
