"""The section `preference`: which of two answers is better."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from loradock.catalog.objectives.preference import LOSSES, LossName
from loradock.config.sections.values import MOST, Auto, Section, Weight


class PreferenceConfig(Section):
    """Preference tuning, under objective preference."""

    loss: LossName | dict[str, float] = Field(
        default="dpo",
        description=f"{', '.join(f'{name} ({loss.source})' for name, loss in LOSSES.items())}; or several with their "
        "weights, whose sum is learned by (`{dpo: 0.8, bco_pair: 0.2}`; not "
        f"{', '.join(name for name, loss in LOSSES.items() if loss.alone)}).",
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

    keep_reference: bool = Field(
        default=True,
        description="Keep the reference's log-probability of each answer from its first epoch on, in the checkpoints, "
        "and of held-out answers from their first evaluation on; false computes them each time. The same to float32's "
        "rounding.",
    )

    @property
    def losses(self) -> dict[str, float]:
        """What is added, each with its weight: several, or one by its name."""
        return self.loss if isinstance(self.loss, dict) else {self.loss: 1.0}

    @property
    def formula(self) -> str:
        """The sum in words, `0.8 dpo + 0.2 bco_pair`; of one loss its name."""
        if not isinstance(self.loss, dict):
            return self.loss
        return " + ".join(f"{weight:g} {name}" for name, weight in self.loss.items())

    @property
    def weight_of_likelihood(self) -> float:
        """What `likelihood_weight` comes to."""
        weight = self.likelihood_weight
        return max(LOSSES[name].likelihood_weight for name in self.losses) if weight == "auto" else float(weight)
