"""What an objective is, apart from its mathematics: the samples that it learns from, its keys, what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loradock.catalog.samples import KINDS, SampleKind

Pass = Literal["likelihood", "score", "embed", "loss_sum"]
"""What a step asks of a backend (`training.passes`): the negative log-likelihood of all learned tokens, the
log-probability of each document, vectors of documents, or the objective's own `loss_sum`, by autograd alone."""
MARGINS_UNREAD = frozenset({"margin"})


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """The pure face of an objective; `computed_by` is the other, `module:Class` below `training.objectives`.

    `meaning` ends "what is learned: ...". `batch_key` says how much an optimiser step sees, at least `least_batch`.
    `metrics` are those that a checkpoint can be judged by. `keys` are sections (`embedding.`) and keys that only it
    has, and those which share them; `without_effect` gives a reason for each key of all runs that does nothing under
    it. `defaults` are those of other keys, where the objective needs another value than the rest. `variants` are what
    it is under some values of `variant_key`, each of which is named by its `variant`. `plain_passes`, by a value of
    that key: how often a step's samples are run forward besides, without a gradient, as by a reference. `has_head`: a
    scalar head is trained beside the adapter, and scores documents (`model.reward_head`); its passes are `embed`.
    `reads_margins`: by how much a row says that its chosen answer is better.
    """

    name: str
    meaning: str
    samples: frozenset[SampleKind]
    passes: frozenset[Pass]
    computed_by: str
    batch_key: str = "train.global_batch"
    least_batch: int = 1
    metrics: tuple[str, ...] = ("loss",)
    keys: tuple[str, ...] = ()
    without_effect: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    variant_key: str = ""
    variants: tuple[ObjectiveSpec, ...] = ()
    variant: str = ""
    plain_passes: Mapping[str, int] = field(default_factory=dict[str, int])
    has_head: bool = False
    reads_margins: bool = False

    def under(self, choice: object) -> ObjectiveSpec:
        """What it is under a value of `variant_key`."""
        return next((variant for variant in self.variants if variant.variant == choice), self)

    @property
    def options(self) -> str:
        """What is typed to choose it."""
        return f"--set objective={self.name}" + f" --set {self.variant_key}={self.variant}" * bool(self.variant)

    @property
    def answers(self) -> bool:
        """Whether the adapter answers prompts."""
        return self.documents_answered > 0 and not self.has_head

    @property
    def documents_answered(self) -> int:
        """How many documents of answers each of train.global_batch samples has; 0 where none is learned from."""
        return sum(KINDS[kind].documents for kind in self.samples if KINDS[kind].teaches == "answers")

    @property
    def documents_together(self) -> int:
        """How many documents go through a device together at least: those of a sample are never split."""
        return max(KINDS[kind].documents for kind in self.samples)

    @property
    def embeds(self) -> bool:
        """Whether the adapter embeds texts."""
        return any(KINDS[kind].teaches == "vectors" for kind in self.samples)

    @property
    def needs_whole_model(self) -> bool:
        """Whether it asks for passes that no model makes which is cut among GPUs: vectors, outside of any forward.

        All of a step's are made before one of them is run backward, and a rank has as many as its texts need.
        """
        return self.embeds

    @property
    def unread_fields(self) -> frozenset[str]:
        """Fields of rows that it makes nothing of, so that what they hold refuses no row."""
        return frozenset() if self.reads_margins else MARGINS_UNREAD

    def owns(self, key: str) -> bool:
        """Whether a dotted key is one of its own."""
        return any(key == one or (one.endswith(".") and key.startswith(one)) for one in self.keys)
