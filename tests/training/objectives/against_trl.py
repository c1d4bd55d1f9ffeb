"""What the comparisons with TRL's trainers share: a job that begins as its own reference, and their arguments."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from jobs import job_of, trained

from loradock.model.adapters import trainable
from loradock.training.events import StepResult
from loradock.training.job import Job

OTHER_ORDER = 2e-5
"""Sums of float32 in another order, over twenty steps."""


def begun(folder: Path, *settings: str, model: Path, data: Path) -> Job:
    """A job whose adapter begins as nothing: the model is its own reference."""
    made = job_of(folder, *settings, model=model, data=data)
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
    return made


def lines(made: Job) -> list[StepResult]:
    """What each step reported, once the job is trained."""
    return [event for event in trained(made)[1] if isinstance(event, StepResult)]


def arguments(made: Job, folder: Path, *, samples: int) -> dict[str, Any]:
    """Those of every trainer of TRL: the job's optimiser on the CPU in float32, a line for each step."""
    train = made.config.train
    return {
        "output_dir": str(folder),
        "max_steps": train.max_steps,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "per_device_train_batch_size": samples,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "bf16": False,
        "dataloader_pin_memory": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }


def logged(
    trainer: Any, made: Job, settings: Any, *, first: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A trainer's log lines: it is made with rows of text `first`, and trains on `rows` of ids as they are."""
    fresh = [(each, each.data) for each in trainable(made.model)]
    run = trainer(
        model=made.model, args=settings, train_dataset=Dataset.from_list(list(first)), processing_class=made.tokenizer
    )
    for parameter, data in fresh:  # TRL casts the adapters of a quantised model to bfloat16
        parameter.data = data
    run.train_dataset = Dataset.from_list(list(rows))
    gc.freeze()  # accelerate collects before it begins
    run.train()
    return [entry for entry in run.state.log_history if "loss" in entry]
