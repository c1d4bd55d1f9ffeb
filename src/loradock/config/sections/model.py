"""The sections `model`, `tokenizer` and `lora`: the base, its tokenizer, and the adapter on it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from loradock.catalog import storages
from loradock.catalog.storages import Storage, StorageName
from loradock.config.sections.values import Auto, NotNegative, Place, Section

Rank = Annotated[int, Field(ge=1, le=16_384)]
Alpha = Annotated[float, Field(gt=0, le=1_000_000)]


class ModelConfig(Section):
    """The base model and how it is held in memory."""

    name: Place = Field(default="", description="A local directory, or a hub id (OWNER/NAME).")
    revision: str | None = Field(
        default=None,
        description="Commit of the hub model; default: the latest, printed and recorded. A branch name can move.",
    )
    quantization: StorageName = Field(default="nf4", description="How base weights are stored.")
    double_quant: bool = Field(default=True, description="Quantise NF4's scales too: 0.37 bits a weight less.")
    compute_dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto",
        description="The dtype of matrix products; auto: bfloat16 from sm80, float16 below, float32 on CPU.",
    )
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = Field(
        default="auto", description="Attention kernel."
    )
    rope_scaling: Literal["off", "linear", "yarn"] = Field(
        default="off",
        description="Stretch the base's rotary positions for longer texts: linear (Chen et al. 2023), yarn (Peng et "
        "al. 2023). Short texts are read otherwise, too.",
    )
    rope_factor: Annotated[float, Field(ge=1, le=1024)] = Field(
        default=1.0, description="How many times the base's positions there are with rope_scaling."
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


class TokenizerConfig(Section):
    """The base's tokenizer, and what is added to it."""

    add_tokens: tuple[str, ...] = Field(
        default=(),
        description="Texts that become one token each, not special; their rows of the embedding, and of a head of its "
        "own, are trained with the adapter.",
    )


class LoraConfig(Section):
    """The adapter."""

    rank: Rank = Field(default=16, description="LoRA rank r.")
    alpha: Alpha = Field(default=32, description="LoRA scaling numerator.")
    rank_pattern: dict[str, Rank] = Field(
        default={}, description="Ranks of some layers, by a regular expression that ends their names, as PEFT has it."
    )
    alpha_pattern: dict[str, Alpha] = Field(default={}, description="The same of alpha.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, description="Dropout before A.")
    targets: Literal["all-linear"] | tuple[str, ...] = Field(
        default="all-linear",
        description="Names (suffixes) of the linear layers that get an adapter; experts of a mixture by theirs: "
        "[all-linear, experts].",
    )
    rslora: bool = Field(default=False, description="Scale by alpha/sqrt(r) (Kalajdzievski 2023).")
    dora: bool = Field(default=False, description="Weight-decomposed LoRA (Liu et al. 2024).")
    init: Literal["default", "gaussian", "pissa", "olora", "orthogonal"] = Field(
        default="default", description="How A and B begin; pissa and olora change the base and need quantization none."
    )
    adapter: Place | None = Field(
        default=None,
        description="An adapter, or the run that made it, to begin with in the place of a fresh one: same base, rank "
        "and targets; optimiser and schedule are new.",
    )
    modules_to_save: tuple[str, ...] = Field(
        default=(), description="Modules trained whole and saved with the adapter."
    )

    def rank_of(self, layer: str) -> int:
        """The rank of the adapter on a layer, by its dotted name in the base."""
        return next((rank for pattern, rank in self.rank_pattern.items() if names_layer(pattern, layer)), self.rank)


def names_layer(pattern: str, layer: str) -> bool:
    """Whether a pattern of ranks means a layer: PEFT's rule, the whole name or the end of it after a dot."""
    return re.match(rf"(.*\.)?({pattern})$", layer) is not None


def names_experts(parameter: str, target: str) -> bool:
    """Whether a target of LoRA means a parameter of experts: by its module, or by both (`experts.down_proj`).

    `down_proj` alone means linear layers only, as PEFT has it: a shared expert's, or a dense layer's.
    """
    module, _, key = parameter.rpartition(".")
    return f".{module}".endswith(f".{target}") or (target != key and f".{parameter}".endswith(f".{target}"))
