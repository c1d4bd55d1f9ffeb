"""Preference tuning: the chosen answer of a prompt is to become likelier than the rejected one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from loradock.catalog.objectives.base import ObjectiveSpec


@dataclass(frozen=True, kw_only=True)
class PreferenceLoss:
    """A loss in words; its formula is `training.objectives.preference_losses`.

    `has_reference`: answers are held against the model without the adapter. `keys` of section `preference` are those
    that it reads besides `beta` and `likelihood_weight`, whose value under auto is `likelihood_weight`. `alone` is why
    it is no part of a sum of losses.
    """

    source: str
    has_reference: bool = True
    keys: tuple[str, ...] = ()
    likelihood_weight: float = 0.0
    alone: str = ""


NO_REFERENCE = "it has no reference, and those that can be added compare answers with one"
LOSSES: dict[str, PreferenceLoss] = {
    "dpo": PreferenceLoss(source="Rafailov et al. 2023", keys=("label_smoothing",)),
    "ipo": PreferenceLoss(source="Azar et al. 2023"),
    "hinge": PreferenceLoss(source="Zhao et al. 2023, SLiC-HF"),
    "robust": PreferenceLoss(source="Chowdhury et al. 2024", keys=("label_smoothing",)),
    "apo_zero": PreferenceLoss(source="D'Oosterlinck et al. 2024"),
    "apo_down": PreferenceLoss(source="D'Oosterlinck et al. 2024"),
    "sppo": PreferenceLoss(source="Wu et al. 2024"),
    "bco_pair": PreferenceLoss(source="Jung et al. 2024"),
    "orpo": PreferenceLoss(source="Hong et al. 2024", has_reference=False, likelihood_weight=1.0, alone=NO_REFERENCE),
    "simpo": PreferenceLoss(
        source="Meng et al. 2024", has_reference=False, keys=("margin", "label_smoothing"), alone=NO_REFERENCE
    ),
    "cpo": PreferenceLoss(
        source="Xu et al. 2024",
        has_reference=False,
        keys=("label_smoothing",),
        likelihood_weight=1.0,
        alone=NO_REFERENCE,
    ),
    "kto": PreferenceLoss(
        source="Ethayarajh et al. 2024",
        keys=("desirable_weight", "undesirable_weight"),
        alone="it learns from labelled answers, the others from pairs",
    ),
}
OWN_KEYS = tuple(dict.fromkeys(key for loss in LOSSES.values() for key in loss.keys))
"""Keys that some losses alone read."""

if TYPE_CHECKING:
    LossName = str
else:
    LossName = Literal[tuple(LOSSES)]

PAIRED = ObjectiveSpec(
    name="preference",
    meaning="which of two answers is better",
    samples=frozenset({"preferences"}),
    passes=frozenset({"score"}),
    computed_by="preference:Preference",
    metrics=("loss", "preference_accuracy", "reward_margin"),
    keys=("preference.",),
    defaults={"train.learning_rate": 5e-6},
    variant_key="preference.loss",
    plain_passes={name: 1 for name, loss in LOSSES.items() if loss.has_reference},
    without_effect={
        "data.loss": "objective preference learns the answers, not the prompt",
        "data.overlap": "objective preference never splits an answer",
    },
)
JUDGED = replace(
    PAIRED,
    variant="kto",
    least_batch=2,
    plain_passes={"kto": 3},
    meaning="which answers are desirable",
    samples=frozenset({"judgements"}),
    computed_by="kto:Kto",
    without_effect={
        **PAIRED.without_effect,
        "preference.share_prompts": "preference.loss kto has one answer of a prompt",
        "preference.likelihood_weight": "preference.loss kto has no likelihood term",
    },
)
SPEC = replace(PAIRED, variants=(JUDGED,))
