"""The next token of a row: the likeliest, or one drawn; what is drawn depends on the row and its seed alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Temperature 0 is greedy. `top_p`: the likeliest tokens that hold this much probability (Holtzman et al. 2020)."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


GREEDY = Sampling()


def seed_of(sampling: Sampling, *, row: str, sample: int) -> int:
    """The seed of one answer: of the run's seed, the row's key and the number of the sample."""
    digest = hashlib.sha256(f"{sampling.seed}\0{row}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


class Chooser:
    """Chooses the tokens of one answer, one after the other."""

    def __init__(self, sampling: Sampling, *, seed: int) -> None:
        self._sampling = sampling
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """An id for float logits [vocabulary]: inverse of the cumulated probabilities, likeliest first, in float64."""
        if not self._sampling.temperature:
            return int(logits.argmax())
        scaled = logits.detach().double().cpu() / self._sampling.temperature
        chances, ids = torch.softmax(scaled, dim=0).sort(descending=True, stable=True)
        reached = chances.cumsum(0)
        count = int((reached < self._sampling.top_p).sum()) + 1
        drawn = torch.rand((), generator=self._random, dtype=torch.float64) * reached[min(count, len(ids)) - 1]
        return int(ids[min(int((reached <= drawn).sum()), count - 1, len(ids) - 1)])
