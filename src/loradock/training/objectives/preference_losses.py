"""Losses over pairs of answers, each with its formula; the table is that of `catalog.objectives.preference`.

Notation: c and r are the summed log-probabilities of the chosen and the rejected answer under the model that is
trained, c0 and r0 under the reference, |c| and |r| the learned tokens of each, b is beta, e the label smoothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from loradock.config.sections.preference import PreferenceConfig


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Both answers of each pair, float32 or float64 [pairs] each; `lengths` in learned tokens.

    Under a loss without a reference its log-probabilities are zeros.
    """

    chosen: torch.Tensor
    rejected: torch.Tensor
    reference_chosen: torch.Tensor
    reference_rejected: torch.Tensor
    chosen_lengths: torch.Tensor
    rejected_lengths: torch.Tensor

    @property
    def ratios(self) -> tuple[torch.Tensor, torch.Tensor]:
        """c - c0 and r - r0."""
        return self.chosen - self.reference_chosen, self.rejected - self.reference_rejected

    @property
    def means(self) -> tuple[torch.Tensor, torch.Tensor]:
        """c / |c| and r / |r|."""
        return self.chosen / self.chosen_lengths, self.rejected / self.rejected_lengths


def smoothed(margin: torch.Tensor, smoothing: float) -> torch.Tensor:
    """-(1 - e) log sigmoid(m) - e log sigmoid(-m); -log sigmoid(m) is softplus(-m)."""
    return (1 - smoothing) * softplus(-margin) + smoothing * softplus(margin)


def dpo(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """-log sigmoid(b ((c - c0) - (r - r0))) (Rafailov et al. 2023, eq. 7); with e: conservative DPO (Mitchell 2023)."""
    chosen, rejected = of.ratios
    return smoothed(options.beta * (chosen - rejected), options.label_smoothing)


def ipo(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """((c - c0) / |c| - (r - r0) / |r| - 1 / 2b)^2 (Azar et al. 2023, eq. 17; means over tokens as in TRL)."""
    chosen, rejected = of.ratios
    return (chosen / of.chosen_lengths - rejected / of.rejected_lengths - 1 / (2 * options.beta)).square()


def hinge(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """max(0, 1 - b ((c - c0) - (r - r0))) (Zhao et al. 2023)."""
    chosen, rejected = of.ratios
    return (1 - options.beta * (chosen - rejected)).relu()


def robust(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """(-(1 - e) log sigmoid(m) + e log sigmoid(-m)) / (1 - 2e) with DPO's margin m (Chowdhury et al. 2024)."""
    chosen, rejected = of.ratios
    margin, smoothing = options.beta * (chosen - rejected), options.label_smoothing
    return ((1 - smoothing) * softplus(-margin) - smoothing * softplus(margin)) / (1 - 2 * smoothing)


def apo_zero(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """1 - sigmoid(b (c - c0)) + sigmoid(b (r - r0)) (D'Oosterlinck et al. 2024, eq. 7)."""
    chosen, rejected = of.ratios
    return 1 - torch.sigmoid(options.beta * chosen) + torch.sigmoid(options.beta * rejected)


def apo_down(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """sigmoid(b (c - c0)) + 1 - sigmoid(b ((c - c0) - (r - r0))) (D'Oosterlinck et al. 2024, eq. 8)."""
    chosen, rejected = of.ratios
    return torch.sigmoid(options.beta * chosen) + 1 - torch.sigmoid(options.beta * (chosen - rejected))


def sppo(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """(c - c0 - 1 / 2b)^2 + (r - r0 + 1 / 2b)^2, the chosen answer wins for sure (Wu et al. 2024, eq. 4.7)."""
    chosen, rejected = of.ratios
    return (chosen - 0.5 / options.beta).square() + (rejected + 0.5 / options.beta).square()


def bco_pair(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """-log sigmoid(b (c - c0)) - log sigmoid(-b (r - r0)) (Jung et al. 2024, without their shift, as in TRL)."""
    chosen, rejected = of.ratios
    return softplus(-options.beta * chosen) + softplus(options.beta * rejected)


def orpo(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """-b log sigmoid(log odds(c) - log odds(r)), odds(p) = p / (1 - p), of means over tokens (Hong et al. 2024)."""
    chosen, rejected = of.means
    odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return options.beta * softplus(-odds)


def simpo(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """-log sigmoid(b (c / |c| - r / |r|) - margin) (Meng et al. 2024, eq. 6)."""
    chosen, rejected = of.means
    return smoothed(options.beta * (chosen - rejected) - options.margin, options.label_smoothing)


def cpo(of: Answers, options: PreferenceConfig) -> torch.Tensor:
    """-log sigmoid(b (c - r)) (Xu et al. 2024, eq. 5), to which the likelihood of the chosen answers is added."""
    return smoothed(options.beta * (of.chosen - of.rejected), options.label_smoothing)


LOSSES: dict[str, Callable[[Answers, PreferenceConfig], torch.Tensor]] = {
    function.__name__: function
    for function in (dpo, ipo, hinge, robust, apo_zero, apo_down, sppo, bco_pair, orpo, simpo, cpo)
}
"""Each gives the loss of every pair, [pairs], without the likelihood term."""


def loss_of(answers: Answers, options: PreferenceConfig) -> torch.Tensor:
    """The loss of every pair, [pairs]: the one that is named, or the sum of several, each times its weight."""
    if not isinstance(options.loss, dict):
        return LOSSES[options.loss](answers, options)
    return torch.stack([weight * LOSSES[name](answers, options) for name, weight in options.loss.items()]).sum(dim=0)
