"""Facts: what the machine, the model and the data are. Types only, so that pure rooms can read them.

`machine/probe.py` gathers `Facts` through the host, `model/shape.py` reads `ModelFacts` from a model's config without
its weights, and a run counts `DataFacts` once the rows are prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU. `capability` is the compute capability, (8, 0) for an A100.

    `taken_bytes`: what other processes held when this one began. `runtime_bytes`: what CUDA itself takes, where it was
    measured (`training.device_memory`).
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    taken_bytes: int = 0
    runtime_bytes: int | None = None

    @property
    def architecture(self) -> str:
        """The compute capability as compilers write it: sm80."""
        return "sm{}{}".format(*self.capability)


IMAGE_DIGEST = "LORADOCK_IMAGE_DIGEST"
"""The variable that tells a container the digest of its image, which no image can hold itself: `render` sets it."""
DESCRIBED = "any"
"""The platform and the Python of a machine that was only described."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The machine as a run sees it: limits of its cgroup, not of the host beneath.

    `instruction_set` is the x86-64 level of its CPU (x86-64-v4 has AVX-512, v3 AVX2), or the architecture's name.
    """

    platform: str
    python: str
    cpus: int
    memory_bytes: int
    in_container: bool
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    packages: dict[str, str] = field(default_factory=dict[str, str])
    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    local_world_size: int | None = None
    git_commit: str | None = None
    lock_sha256: str | None = None
    image_digest: str | None = None
    instruction_set: str = ""

    @property
    def is_described(self) -> bool:
        """True for a machine that was named and not looked at: what is installed there is not known."""
        return self.platform == DESCRIBED

    @property
    def has_gpu(self) -> bool:
        """True where at least one GPU is visible to this process."""
        return bool(self.gpus)

    @property
    def processes_here(self) -> int:
        """Processes of this run on this machine, which share its CPUs and memory."""
        return self.local_world_size or self.world_size

    @property
    def gpu(self) -> Gpu:
        """This process's own GPU: the one of its local rank."""
        return self.gpus[self.local_rank % len(self.gpus)]


@dataclass(frozen=True, kw_only=True)
class LinearShape:
    """One linear layer of the model, by its dotted name; `own_rank`: of its adapter, where it has not the run's."""

    name: str
    rows: int
    columns: int
    own_rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """One matrix of every expert of a layer, by the dotted name of its parameter, of which a token uses `active`."""

    name: str
    count: int
    active: int
    rows: int
    columns: int
    own_rank: int | None = None

    @property
    def weights(self) -> int:
        """Of all experts."""
        return self.count * self.rows * self.columns


HALF_BYTES = 2
"""Of a weight in 16 bits."""
SHOWN_KINDS = 3
UNREACHABLE_SHARE = 0.01
"""Of a model's inner weights: more than these outside linear layers are told."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A part of a published model that is not its language model (a tower, a projector): it is not loaded."""

    name: str
    parameters: int


COUNTED_TOKENS = 512
"""Of the row that a recurrent layer is counted with: whole chunks for every kind, and soon counted."""


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """A model's recurrent layers, and what one of them costs where no kernel computes it.

    `missing`: packages whose kernels transformers would use, and that are not installed. `launches`, `traffic_bytes`:
    operators of a pass of `COUNTED_TOKENS` tokens, forward and backward, and what they read and write. `kept_bytes`:
    for a token from forward to backward, by compute dtype. 0 and empty where kernels compute, or nothing was counted.
    `chunk_tokens`: of whole chunks, to which each document is filled up.
    """

    layers: int
    missing: tuple[str, ...] = ()
    launches: int = 0
    traffic_bytes: int = 0
    kept_bytes: dict[str, int] = field(default_factory=dict[str, int])
    chunk_tokens: int = 1

    def kept(self, dtype: str) -> int:
        """Bytes a token of one layer, in this compute dtype."""
        return self.kept_bytes.get("float32" if dtype == "float32" else "bfloat16", 0)


@dataclass(frozen=True, kw_only=True)
class PositionFacts:
    """How many positions a base has, `context_length`; None where it states no number.

    `window`: positions that it was trained on, where RoPE scaling stretches them or can, else None.
    """

    name: str
    context_length: int | None = None
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts(PositionFacts):
    """A causal LM as its config describes it; nothing here needs the weights.

    `linears` are the layers that quantisation and LoRA can reach (the output head is not among them); `parameters`
    counts every weight, tied ones once; `unreachable_parameters` those that neither reaches, `unreachable_kinds` what
    they are, the most first. `targets` are the names of the layers that get an adapter. `has_sdpa`: its code
    can use torch's attention. `capped_heads`: query heads of a layer, where their scores are bounded before the softmax
    (Gemma 2), else 0. `peculiarity`: what sets its computation apart from its family's, in words, or None. `decoder`:
    the class of its decoder. `left_out`: parts beside its language model, counted nowhere else. `recurrence`: its
    layers that mix tokens by more than attention, None without. `experts`: matrices of a mixture's experts that the
    storage and LoRA can reach; `expert_targets`: the names of those that get an adapter; `expert_names`: of linear
    layers that PEFT takes for experts of this kind of model, so that they get none. `row_parameters`: weights of the
    rows of new tokens, which are trained with the adapter. `is_prequantised`: its files hold it in NF4, but for
    `dense_parameters` of its linear layers, or in what `stored_as` names, which is made dense as it is read.
    `pack_limit`: the most tokens of a pack in which its code counts each document from its own start, None without end.
    `heads`: of queries in a layer. `has_clamped_gates`: its experts' gates are bounded (gpt-oss). `normed_heads`:
    elements of queries, keys and values that go through a norm of their own, of a token in all layers.
    """

    architecture: str
    decoder: str
    layers: int
    hidden: int
    vocabulary: int
    parameters: int
    linears: tuple[LinearShape, ...]
    targets: tuple[str, ...]
    unreachable_parameters: int
    unreachable_kinds: tuple[str, ...] = ()
    weights_bytes: int = 0
    has_sdpa: bool = True
    capped_heads: int = 0
    peculiarity: str | None = None
    pack_limit: int | None = None
    heads: int = 0
    has_clamped_gates: bool = False
    normed_heads: int = 0
    left_out: tuple[LeftOut, ...] = ()
    recurrence: Recurrence | None = None
    experts: tuple[ExpertShape, ...] = ()
    expert_targets: tuple[str, ...] = ()
    expert_names: tuple[str, ...] = ()
    row_parameters: int = 0
    head_parameters: int = 0
    is_prequantised: bool = False
    stored_as: str | None = None
    dense_parameters: int = 0

    @property
    def reached_parameters(self) -> int:
        """Weights that quantisation can reach: of linear layers and of experts."""
        return sum(layer.rows * layer.columns for layer in self.linears) + self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        """Weights of all experts."""
        return sum(matrix.weights for matrix in self.experts)

    @property
    def experts_without_adapter(self) -> int:
        """Weights of the experts that get no adapter."""
        adapted = set(self.expert_targets)
        return sum(matrix.weights for matrix in self.experts if matrix.name not in adapted)

    @property
    def active_parameters(self) -> int:
        """Weights of linear layers and experts that one token is multiplied with."""
        idle = sum(matrix.weights // matrix.count * (matrix.count - matrix.active) for matrix in self.experts)
        return self.reached_parameters - idle

    @property
    def unreachable_share(self) -> float:
        """Of the inner weights, those outside linear layers: neither NF4 nor LoRA reaches them."""
        inner = self.reached_parameters + self.unreachable_parameters
        return self.unreachable_parameters / inner if inner else 0.0

    @property
    def unreachable_words(self) -> str:
        """What those are, see `unreachable_words`."""
        return unreachable_words(self.unreachable_kinds)

    def adapter_parameters(self, rank: int) -> int:
        """Trainable weights of a plain LoRA of this rank (or the target's own): r x (in + out) for each target.

        A matrix of experts has as many as it has experts. Rows of new tokens are among them.
        """
        chosen, experts = set(self.targets), set(self.expert_targets)
        targets = (layer for layer in self.linears if layer.name in chosen)
        of_linears = sum((layer.own_rank or rank) * (layer.rows + layer.columns) for layer in targets)
        matrices = (matrix for matrix in self.experts if matrix.name in experts)
        return (
            of_linears
            + self.row_parameters
            + self.head_parameters
            + sum(matrix.count * (matrix.own_rank or rank) * (matrix.rows + matrix.columns) for matrix in matrices)
        )


def unreachable_words(kinds: Sequence[str]) -> str:
    """What weights outside linear layers are: experts that lie in one tensor a layer, or parameters by their names."""
    first = ", ".join(kinds[:SHOWN_KINDS])
    return "fused experts" if "expert" in first.partition(",")[0] else first


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """The prepared data set. Tokens are counted after truncation to `limit_tokens`, the longest row allowed.

    `steps_per_epoch`: 0 where rows are only described. With `pairs`, rows are the documents that an epoch of them
    embeds, and the rows beside them. `together`: documents that are one row in the file, each of which counts as a row
    here. `template`: what turns are rendered with, and where it comes from.
    """

    train_rows: int
    validation_rows: int
    tokens: int
    supervised_tokens: int
    limit_tokens: int
    longest_tokens: int
    samples_per_epoch: int
    steps_per_epoch: int = 0
    epoch_tokens: int = 0
    truncated_rows: int = 0
    split_rows: int = 0
    dropped_rows: int = 0
    lost_tokens: int = 0
    pairs: int = 0
    together: int = 1
    template: tuple[str, str] = ("unknown", "the rows are described, not read")

    @property
    def mean_tokens(self) -> float:
        """Mean length of a training row, in tokens."""
        return self.tokens / max(1, self.train_rows)
