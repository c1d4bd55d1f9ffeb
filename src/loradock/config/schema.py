"""RunConfig: everything a user can ask of a run, typed, with its default and its meaning.

Unknown keys are refused. "auto" means that the plan decides, and prints why. Add a key by adding a field with a
description to its section in `config/sections/`; `loradock config schema` and `docs/config.md` follow from it.
"""

from __future__ import annotations

from functools import reduce
from typing import Annotated, Literal, cast

from pydantic import Field

from loradock.catalog.engines import EngineName
from loradock.catalog.objectives import DEFAULT, OBJECTIVES, ObjectiveName
from loradock.catalog.objectives.base import ObjectiveSpec
from loradock.config.sections.data import DataConfig
from loradock.config.sections.embedding import EmbeddingConfig
from loradock.config.sections.model import LoraConfig, ModelConfig, TokenizerConfig
from loradock.config.sections.preference import PreferenceConfig
from loradock.config.sections.progress import (
    AfterConfig,
    CheckpointConfig,
    EvaluationConfig,
    LimitsConfig,
    LoggingConfig,
)
from loradock.config.sections.reward import RewardConfig
from loradock.config.sections.train import TrainConfig
from loradock.config.sections.values import NamedPlace, Section


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
    engine: EngineName = Field(
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
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig = DataConfig()
    lora: LoraConfig = LoraConfig()
    train: TrainConfig = TrainConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    preference: PreferenceConfig = PreferenceConfig()
    reward: RewardConfig = RewardConfig()
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
        answered = self.train.global_batch * self.objective_spec.documents_answered
        documents = self.embedding.global_batch * (2 + self.embedding.negatives)
        return answered + (documents if self.objective_spec.embeds else 0)

    @property
    def objective_spec(self) -> ObjectiveSpec:
        """What the objective is; everybody asks it, and nobody its name."""
        return OBJECTIVES[self.objective].under(self._choice)

    @property
    def plain_passes(self) -> int:
        """How often a step's samples are run forward besides, without a gradient."""
        choice = self._choice
        names = list(cast("dict[str, float]", choice)) if isinstance(choice, dict) else [str(choice)]
        return max((self.objective_spec.plain_passes.get(name, 0) for name in names), default=0)

    @property
    def _choice(self) -> object:
        """The value that the objective varies by."""
        key = OBJECTIVES[self.objective].variant_key
        return reduce(getattr, key.split("."), self) if key else ""

    @property
    def batch_key(self) -> str:
        """The key that says how much an optimiser step sees."""
        return self.objective_spec.batch_key
