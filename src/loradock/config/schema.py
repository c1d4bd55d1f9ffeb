"""RunConfig: everything a user can ask of a run, typed, with its default and its meaning.

Unknown keys are refused. "auto" means that the plan decides, and prints why. Add a key by adding a field with a
description here; `loradock config schema` and `docs/config.md` follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from loradock.catalog import optimizers, storages
from loradock.catalog.engines import EngineName, ModeName
from loradock.catalog.objectives import DEFAULT, OBJECTIVES, Metric, ObjectiveName
from loradock.catalog.objectives.base import ObjectiveSpec
from loradock.catalog.storages import Storage, StorageName

Auto = Literal["auto"]
MOST = 1_000_000_000
"""Of what is counted: beyond any run, and far from what a number can hold."""
Positive = Annotated[int, Field(ge=1, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Batch = Annotated[int, Field(ge=1, le=1_000_000)]
Length = Annotated[int, Field(ge=1, le=16_777_216)]
"""Of a sample in tokens."""
Workers = Annotated[int, Field(ge=0, le=256)]
Seconds = Annotated[float, Field(ge=0, le=MOST)]
Weight = Annotated[float, Field(gt=0, le=1_000_000)]
Beta = Annotated[float, Field(ge=0, lt=1)]
TextLength = Annotated[int, Field(ge=2, le=16_777_216)]
"""Of a text to embed in tokens."""
HeldOut = Annotated[float, Field(ge=0, le=MOST)]
"""A share below 1, else a number of rows."""
MOST_PATH_BYTES, MOST_NAME_BYTES = 4095, 255
"""Of a path, and of each name in it: what Linux takes (limits.h)."""


@dataclass(frozen=True)
class PathBound:
    """Marks a text as a path, in which `~` and variables are expanded when it is read; `after`: where it begins."""

    after: str = ""


def _fits(path: str) -> str:
    if len(path.encode()) > MOST_PATH_BYTES or any(len(name.encode()) > MOST_NAME_BYTES for name in path.split("/")):
        raise ValueError("too long for a path")
    return path


Place = Annotated[str, AfterValidator(_fits), PathBound()]
"""A file or directory, or the name of something that could be one."""
TaskPlace = Annotated[str, PathBound(after="=")]
"""NAME=FILE."""
NamedPlace = Annotated[str, Field(min_length=1), AfterValidator(_fits), PathBound()]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""What NumPy's, Python's and torch's generators all take."""
SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""What a validation set is called; metrics have it in their names."""


class Section(BaseModel):
    """A part of the configuration: unknown keys refused, values never changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class ModelConfig(Section):
    """The base model and how it is held in memory."""

    name: Place = Field(default="", description="A local directory, or a hub id (which needs `revision`).")
    revision: str | None = Field(default=None, description="Commit of the hub model; a branch name can move.")
    quantization: StorageName = Field(default="nf4", description="How base weights are stored.")
    double_quant: bool = Field(default=True, description="Quantise NF4's scales too: 0.37 bits a weight less.")
    compute_dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto",
        description="The dtype of matrix products; auto: bfloat16 from sm80, float16 below, float32 on CPU.",
    )
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = Field(
        default="auto", description="Attention kernel."
    )
    sdpa_kernel: Literal["auto", "flash", "memory-efficient", "math", "cudnn"] = Field(
        default="auto",
        description="Kernel of attention sdpa on a GPU; auto: torch picks the first that serves.",
    )
    kernels: Literal["auto", "triton", "torch"] = Field(
        default="auto", description="Elementwise kernels of the fast engine; auto: Triton on a GPU, torch elsewhere."
    )
    cache_weights: NotNegative | Auto = Field(
        default="auto",
        description="Layers whose NF4 weights are kept dense as well (fast engine); auto: as many as memory allows.",
    )
    trust_remote_code: Place | None = Field(
        default=None, description="The model's own name, repeated, to run the Python code that it ships. Off otherwise."
    )

    @property
    def storage(self) -> Storage:
        """How base weights are stored, as the catalog has it."""
        return storages.of(self.quantization)


FormatName = Literal[
    "auto", "pairs", "sentence-transformers", "tevatron", "swift",
    "messages", "sharegpt", "alpaca", "prompt-completion", "text",
]  # fmt: skip
"""Of the four in the first line each row is a query with its passages, for an embedding model."""


class SourceConfig(Section):
    """One data source: a file, a directory, or a hub data set."""

    path: Place = Field(
        min_length=1,
        description="JSON, JSONL, CSV, text (each also .gz, .zst), Parquet; a directory or pattern (`rows/*.jsonl`) of "
        "such files of one kind; an arrow directory; or hub:OWNER/NAME.",
    )
    format: FormatName = Field(default="auto", description="What a row looks like; auto: as its columns say.")
    fields: dict[str, str] = Field(
        default_factory=dict, description="The format's field name -> the column that holds it."
    )
    ignore: tuple[str, ...] = Field(default=(), description="Columns that are left out on purpose.")
    weight: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=1.0, description="How many times an epoch sees each row (0.5: half)."
    )
    revision: str | None = Field(default=None, description="Commit of a hub data set.")
    split: str = Field(default="train", description="Split that is read where a source has several.")


class Reading(Section):
    """How the rows of a source are read: what a run's record and its adapter hold of it, for rows like them."""

    format: FormatName = "auto"
    fields: dict[str, str] = Field(default_factory=dict)
    ignore: tuple[str, ...] = ()


class DataConfig(Section):
    """What is trained on, and how rows become tokens."""

    sources: tuple[SourceConfig, ...] = Field(
        default=(), description="One or several sources; a plain path is one too."
    )
    template: Place = Field(
        default="auto",
        description="auto (the tokenizer's own chat template, else alpaca), a named template, or a .jinja file.",
    )
    date: Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$")] | None = Field(
        default=None,
        description="The date (YYYY-MM-DD) that templates write which ask for today's; default: the day (UTC) on which "
        "the run began, also where it is continued later.",
    )
    loss: Literal["auto", "completion", "assistant", "all"] = Field(
        default="auto",
        description="What is learned: every assistant turn of a conversation, and of prompt/completion rows the "
        "completion (auto); the last answer (completion); every assistant turn (assistant); or all.",
    )
    special_tokens: Literal["auto", "as_text", "as_control"] = Field(
        default="auto",
        description="The text of a special token inside a content (`x</s>y`): plain text, or the control token; auto: "
        "plain text, and control tokens where a chat template wrote a row's text.",
    )
    max_length: Length | Auto = Field(
        default="auto",
        description="Longest sample in tokens; auto: the longest row (at least 1024), as positions and memory allow.",
    )
    long_rows: Literal["split", "truncate", "drop"] = Field(
        default="split",
        description="Rows over max_length: split into windows that learn every token once, cut, or left out.",
    )
    max_dropped: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1, description="Share of the rows that may be left out for their length; more ends the run."
    )
    validation: HeldOut | Place | Annotated[dict[SetName, Place], Field(min_length=1)] = Field(
        default=0.0,
        description="Held-out part: a share below 1, a number of rows, a separate file, or several files by name "
        "(`{chat: chat.jsonl, code: code.jsonl}`), each with a loss of its own.",
    )
    seed: Seed = Field(default=0, description="Seed of the train/validation split.")
    workers: Workers | Auto = Field(default="auto", description="Processes that prepare rows.")
    cache: Place | None = Field(
        default=None, description="Where prepared data are kept; default $XDG_CACHE_HOME/loradock."
    )
    repeat_first: bool = Field(
        default=False,
        description="Every step trains on the first step's rows, kept in memory: what loading costs. For diagnose.",
    )

    @property
    def validation_files(self) -> dict[str, str]:
        """The separate validation files by their names; a single one has an empty name."""
        if isinstance(self.validation, dict):
            return self.validation
        return {"": self.validation} if isinstance(self.validation, str) else {}


class LoraConfig(Section):
    """The adapter."""

    rank: Annotated[int, Field(ge=1, le=16_384)] = Field(default=16, description="LoRA rank r.")
    alpha: Annotated[float, Field(gt=0, le=1_000_000)] = Field(default=32, description="LoRA scaling numerator.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, description="Dropout before A.")
    targets: Literal["all-linear"] | tuple[str, ...] = Field(
        default="all-linear", description="Names (suffixes) of the linear layers that get an adapter."
    )
    rslora: bool = Field(default=False, description="Scale by alpha/sqrt(r) (Kalajdzievski 2023).")
    dora: bool = Field(default=False, description="Weight-decomposed LoRA (Liu et al. 2024).")
    init: Literal["default", "gaussian", "pissa", "olora", "orthogonal"] = Field(
        default="default", description="How A and B begin; pissa and olora change the base and need quantization none."
    )
    modules_to_save: tuple[str, ...] = Field(
        default=(), description="Modules trained whole and saved with the adapter."
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
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(default=2e-4, description="Peak learning rate.")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="Learning rate after warm-up."
    )
    warmup: Annotated[float, Field(ge=0, le=MOST)] = Field(
        default=0.03, description="Warm-up: a share of the steps below 1, else steps."
    )
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = Field(default=0.0, description="Decoupled weight decay.")
    max_grad_norm: Annotated[float, Field(ge=0, le=MOST)] = Field(default=1.0, description="Gradient clipping; 0: off.")
    optimizer: Literal["auto", optimizers.Name] = Field(
        default="auto", description="auto: fused AdamW; paged 8-bit only when memory demands it."
    )
    betas: tuple[Beta, Beta] = Field(
        default=(0.9, 0.999), description="AdamW's two: how much of each moment stays from step to step."
    )
    eps: Annotated[float, Field(ge=1e-30, le=1)] = Field(
        default=1e-8, description="AdamW's epsilon, added to the root of the second moment."
    )
    parallel: Literal["auto", ModeName] = Field(
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


class EmbeddingConfig(Section):
    """Contrastive training of an embedding model, under objective embedding or gritlm."""

    global_batch: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        default=64, description="Query-passage pairs per optimiser step, over all GPUs: each query against all of them."
    )
    attention: Literal["bidirectional", "causal"] = Field(
        default="bidirectional", description="What a token of a text to embed sees; generation stays causal."
    )
    pooling: Literal["mean", "weightedmean", "lasttoken", "cls"] = Field(
        default="mean", description="Which tokens make the vector; only mean and lasttoken are exported."
    )
    pool_instruction: bool = Field(
        default=False, description="Pool the tokens of the instruction too; they are always attended to."
    )
    temperature: Annotated[float, Field(ge=1e-4, le=10)] = Field(
        default=0.02, description="Cosine similarities are divided by it."
    )
    negatives: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=1, description="Hard negatives of each query; other ones are drawn in each epoch."
    )
    in_batch: bool = Field(
        default=True, description="Passages of the step's other queries are negatives too, across GPUs."
    )
    duplicates: Literal["mask", "keep"] = Field(
        default="mask", description="A passage with the text of a query's own positive: left out for it, or a negative."
    )
    query_length: TextLength = Field(default=256, description="Longest query in tokens.")
    passage_length: TextLength = Field(default=512, description="Longest passage in tokens.")
    template: Place = Field(
        default="gritlm", description="How instruction and text become one text: gritlm, e5, plain, or a .jinja file."
    )
    weight: Weight = Field(
        default=1.0, description="Objective gritlm: weight of the contrastive loss beside `train.generative_weight`."
    )
    passes: Literal["auto", "direct", "cached"] = Field(
        default="auto",
        description="cached: forward twice but for the last (GradCache); direct: forward once; auto: "
        "direct where a whole step fits in memory. The bits are the same.",
    )


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


class RunConfig(Section):
    """A whole run."""

    name: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="Name of the run; default: from the model and the data."
    )
    output: NamedPlace | None = Field(
        default=None, description="Run directory; default runs/NAME-NNN, a new one each time."
    )
    objective: ObjectiveName = Field(
        default=DEFAULT,
        description=f"What is learned: {', '.join(f'{spec.meaning} ({spec.name})' for spec in OBJECTIVES.values())}.",
    )
    engine: Literal["auto", EngineName] = Field(
        default="auto",
        description="What computes: auto is fast where it serves the model, else peft; fsdp, zero (DeepSpeed) shard.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: the GPU where there is one.")
    deterministic: bool | Literal["portable"] = Field(
        default=False,
        description="true: bit-identical reruns on a GPU, somewhat slower; portable: also the same bits on every CPU "
        "of x86-64-v3 (AVX2) with as many threads.",
    )
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    lora: LoraConfig = LoraConfig()
    train: TrainConfig = TrainConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    limits: LimitsConfig = LimitsConfig()
    after: AfterConfig = AfterConfig()

    @property
    def keeps_best(self) -> bool:
        """Whether the checkpoint with the best evaluation is kept, and exported: who stops early asks for that one."""
        asked = self.checkpoints.keep_best
        return self.train.early_stopping is not None if asked == "auto" else asked

    @property
    def step_samples(self) -> int:
        """Samples of an optimiser step over all GPUs: rows to answer from, and the documents that are embedded."""
        rows = self.train.global_batch if self.objective_spec.answers else 0
        documents = self.embedding.global_batch * (2 + self.embedding.negatives)
        return rows + (documents if self.objective_spec.embeds else 0)

    @property
    def objective_spec(self) -> ObjectiveSpec:
        """What the objective is; everybody asks it, and nobody its name."""
        return OBJECTIVES[self.objective]

    @property
    def batch_key(self) -> str:
        """The key that says how much an optimiser step sees."""
        return self.objective_spec.batch_key
