"""The section `preference`: which of two answers is better."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from loradock.catalog.objectives.preference import LOSSES, LossName
from loradock.config.sections.values import MOST, Auto, Section, Weight


class PreferenceConfig(Section):
    """Preference tuning, under objective preference."""

    loss: LossName = Field(
        default="dpo", description=f"{', '.join(f'{name} ({loss.source})' for name, loss in LOSSES.items())}."
    )
    beta: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=0.1,
        description="How much a difference in log-probability counts (for orpo: the weight of the odds ratio); larger "
        "stays closer to the reference.",
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        default=0.0, description="Share of pairs that are taken to be the wrong way round (dpo, robust, simpo, cpo)."
    )
    margin: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.5, description="Loss simpo: the margin gamma, in units of its reward."
    )
    desirable_weight: Weight = Field(
        default=1.0, description="Loss kto: weight of the answers that are labelled as desirable."
    )
    undesirable_weight: Weight = Field(default=1.0, description="Loss kto: weight of the others.")
    likelihood_weight: Annotated[float, Field(ge=0, le=MOST)] | Auto = Field(
        default="auto",
        description="Weight of the negative log-likelihood of the chosen answers, a mean over their tokens, that is "
        "added (RPO); auto: 1 for orpo and cpo, else 0.",
    )

    share_prompts: bool = Field(
        default=True,
        description="Compute the prompt of both answers once (fast engine); the same to float32's rounding, dropout "
        "draws one mask for it.",
    )

    @property
    def weight_of_likelihood(self) -> float:
        """What `likelihood_weight` comes to."""
        weight = self.likelihood_weight
        return LOSSES[self.loss].likelihood_weight if weight == "auto" else float(weight)
