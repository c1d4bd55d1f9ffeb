"""The sections beside the steps: evaluation, checkpoints, logging, time limits, and what is made of a finished run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from loradock.catalog.objectives import Metric
from loradock.config.sections.values import Auto, Positive, Seconds, Section, TaskPlace


class EvaluationConfig(Section):
    """Evaluation on the held-out part, and on tasks."""

    every: Positive | Auto = Field(default="auto", description="Optimiser steps between evaluations.")
    tasks: tuple[TaskPlace, ...] = Field(
        default=(),
        description="Tasks that base and adapter answer once the run is finished, each as NAME=FILE: "
        "see loradock evaluate --task.",
    )


class CheckpointConfig(Section):
    """Checkpoints in the run directory."""

    every: Positive | Auto = Field(default="auto", description="Optimiser steps between checkpoints.")
    keep: Positive = Field(default=2, description="How many of the newest are kept.")
    keep_best: bool | Auto = Field(
        default="auto",
        description="Keep the one with the best evaluation too, and export it; auto: with early stopping.",
    )
    metric: Metric = Field(
        default="loss",
        description="What makes an evaluation the best, for keep_best and early stopping; of losses the lowest.",
    )


TrackerName = Literal["tensorboard", "wandb", "mlflow", "comet_ml", "aim", "clearml", "dvclive", "swanlab", "trackio"]


class LoggingConfig(Section):
    """What is recorded while training."""

    every: Positive | Auto = Field(default="auto", description="Optimiser steps between metric lines.")
    trackers: tuple[TrackerName, ...] = Field(default=(), description="Experiment trackers; each has to be installed.")
    project: str = Field(default="loradock", description="Project or experiment name for the trackers.")
    monitor_seconds: Seconds = Field(
        default=2.0, description="Between samples of GPU and host in monitor.jsonl; 0: none are taken."
    )


class LimitsConfig(Section):
    """How long a phase may make no progress before the run is ended as hung; 0: no limit."""

    setup_seconds: Seconds = Field(
        default=3600, description="Without progress while files are fetched, rows prepared and the base loaded."
    )
    step_seconds: Seconds = Field(default=1800, description="For one micro-batch, in training or evaluation.")
    save_seconds: Seconds = Field(default=1800, description="For one checkpoint or the export.")
    peer_seconds: Seconds = Field(
        default=300, description="For another process of the run, before it is named and this one ends too."
    )


class AfterConfig(Section):
    """What is made of a finished run."""

    merge: Literal["none", "auto", "trained", "original"] = Field(
        default="none",
        description="Also write DIRECTORY/merged, one model of base and adapter, onto the weights of training "
        "(trained), the base's files (original), or as loradock merge decides (auto).",
    )
