"""The section `train`: optimisation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from loradock.catalog.engines import ModeName
from loradock.catalog.optimizers import OptimizerName, of_engine
from loradock.catalog.schedules import DecayShape, ScheduleName
from loradock.config.sections.values import (
    MOST,
    Auto,
    Batch,
    Beta,
    NotNegative,
    Place,
    Positive,
    Section,
    Seed,
    Weight,
    Workers,
)


class TrainConfig(Section):
    """Optimisation."""

    global_batch: Batch = Field(default=16, description="Samples per optimiser step, over all GPUs, packed or not.")
    micro_batch: Batch | Auto = Field(
        default="auto", description="Samples (packed: x max_length tokens) per pass of a GPU."
    )
    packing: bool | Auto = Field(default="auto", description="Several documents in one row, without leaking.")
    epochs: Annotated[float, Field(gt=0, le=100_000)] = Field(
        default=1.0, description="Passes over the data, unless max_steps is set."
    )
    max_steps: Positive | None = Field(default=None, description="Optimiser steps; overrides epochs.")
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        default=2e-4, description="Peak learning rate; under objective preference 5e-6 where none is set."
    )
    loraplus_lr_ratio: Annotated[float, Field(gt=0, le=MOST)] = Field(
        default=1.0, description="LoRA+ (Hayou et al. 2024): the learning rate of B over that of A; 1: off."
    )
    schedule: ScheduleName = Field(default="cosine", description="Learning rate after warm-up.")
    min_learning_rate_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="Floor of a schedule that falls, as a share of the peak."
    )
    decay: Annotated[float, Field(gt=0, le=MOST)] = Field(
        default=0.1, description="Schedule wsd: the part that falls, a share of the steps below 1, else steps."
    )
    decay_shape: DecayShape = Field(default="cosine", description="Schedule wsd: how it falls.")
    cycles: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="Schedule cosine_with_restarts: how often it falls from the peak."
    )
    power: Annotated[float, Field(gt=0, le=100)] = Field(
        default=1.0, description="Schedule polynomial: its exponent; 1 is linear."
    )
    warmup: Annotated[float, Field(ge=0, le=MOST)] = Field(
        default=0.03, description="Warm-up: a share of the steps below 1, else steps."
    )
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = Field(default=0.0, description="Decoupled weight decay.")
    max_grad_norm: Annotated[float, Field(ge=0, le=MOST)] = Field(default=1.0, description="Gradient clipping; 0: off.")
    optimizer: OptimizerName = Field(
        default="auto",
        description="auto: fused AdamW; paged 8-bit only when memory demands it; lion wants a third of its rate. "
        f"Engine fast has {' and '.join(of_engine('fast'))} alone, others train by peft.",
    )
    betas: tuple[Beta, Beta] = Field(
        default=(0.9, 0.999), description="AdamW's two: how much of each moment stays from step to step."
    )
    eps: Annotated[float, Field(ge=1e-30, le=1)] = Field(
        default=1e-8, description="AdamW's epsilon, added to the root of the second moment."
    )
    parallel: ModeName = Field(
        default="auto",
        description="How processes share the model; auto: ddp where it fits one GPU, fsdp where it does not.",
    )
    cpu_offload: bool | Auto = Field(
        default="auto", description="Weights of a shared model in host memory; auto: only where nothing else fits."
    )
    deepspeed: Place | None = Field(
        default=None,
        description="Path of a DeepSpeed configuration of your own (JSON); needs parallel zero2 or zero3.",
    )
    checkpointing: bool | NotNegative | Auto = Field(
        default="auto",
        description="Gradient checkpointing (recompute activations): all layers, none, or how many (fast engine).",
    )
    neftune_alpha: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.0, description="NEFTune embedding noise (Jain et al. 2023)."
    )
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | Auto = Field(
        default="auto",
        description="Share of a GPU's memory that the run may take, where others use it too; auto: no limit.",
    )
    tf32: bool | Auto = Field(default="auto", description="TF32 for float32 matrix products, where the GPU has it.")
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = Field(
        default="off",
        description="torch.compile each decoder layer (peft backend); what cannot be compiled runs eagerly.",
    )
    cuda_graphs: bool | Auto = Field(
        default="auto",
        description="Replay micro-steps of the fast engine from CUDA graphs; auto: where the host would be the slower.",
    )
    workers: Workers | Auto = Field(default="auto", description="Data loader workers per GPU.")
    threads: Annotated[int, Field(ge=1, le=1024)] | Auto = Field(
        default="auto",
        description="CPU threads of a process; on a CPU the last bits depend on it. auto: 1 for a tiny model, else its "
        "share of the CPUs.",
    )
    early_stopping: Positive | None = Field(
        default=None, description="Stop after this many evaluations without improvement."
    )
    generative_loss: Literal["token-mean", "sample-sum"] = Field(
        default="token-mean",
        description="Objective gritlm: the generative loss is the mean over a step's learned tokens, or their sum over "
        "its rows (GritLM's `token`).",
    )
    generative_weight: Weight = Field(
        default=1.0, description="Objective gritlm: weight of the generative loss beside `embedding.weight`."
    )
    seed: Seed = Field(default=0, description="Seed of weights, dropout and the order of rows.")
