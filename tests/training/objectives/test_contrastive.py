"""The contrastive loss and its gradient by hand: as autograd has them, and as sentence-transformers computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)

from loradock.training.objectives.contrastive import Contrast, contrast
from loradock.training.objectives.pooling import flat, padded

QUERIES, GROUP, WIDTH = 12, 3, 32
TEMPERATURE = 0.02
BOUND = 5e-7


def vectors(seed: int = 0) -> torch.Tensor:
    """Query, positive, negatives of each row, one after the other; passages lie near their queries."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(QUERIES, 1, WIDTH, generator=generator)
    passages = queries + 0.7 * torch.randn(QUERIES, GROUP, WIDTH, generator=generator)
    return torch.cat([queries, passages], dim=1).flatten(0, 1) * 3.0


def found(made: torch.Tensor, hidden: torch.Tensor | None = None) -> Contrast:
    places = torch.arange(len(made)).view(QUERIES, 1 + GROUP)
    return contrast(
        made,
        queries=places[:, 0],
        passages=places[:, 1:].flatten(),
        positives=torch.arange(QUERIES) * GROUP,
        hidden=torch.zeros(QUERIES, QUERIES * GROUP, dtype=torch.bool) if hidden is None else hidden,
        temperature=TEMPERATURE,
    )


def plain(columns: Sequence[torch.Tensor]) -> torch.Tensor:
    oracle = MultipleNegativesRankingLoss(model=None, scale=1 / TEMPERATURE)  # pyright: ignore[reportArgumentType]
    return oracle.compute_loss_from_embeddings(list(columns), torch.empty(0))


def cached(columns: Sequence[torch.Tensor]) -> torch.Tensor:
    """In chunks of five queries, each column in chunks as GradCache embeds them."""
    no_model: Any = [None]
    oracle = CachedMultipleNegativesRankingLoss(no_model, scale=1 / TEMPERATURE, mini_batch_size=5)
    return oracle.calculate_loss([list(column.split(5)) for column in columns])


@pytest.mark.parametrize("oracle", [plain, cached])
def test_loss_and_gradient_are_those_of_sentence_transformers(
    oracle: Callable[[Sequence[torch.Tensor]], torch.Tensor],
) -> None:
    leaf = vectors().requires_grad_()
    loss = oracle(leaf.view(QUERIES, 1 + GROUP, WIDTH).unbind(1))
    loss.backward()
    ours = found(leaf.detach())
    assert leaf.grad is not None
    assert abs(float(ours.loss) - loss.item()) / loss.item() < BOUND
    assert float((ours.gradient - leaf.grad).norm() / leaf.grad.norm()) < 2 * BOUND


def test_a_hidden_passage_has_no_part_in_the_loss_and_gets_no_gradient_from_that_query() -> None:
    hidden = torch.zeros(QUERIES, QUERIES * GROUP, dtype=torch.bool)
    hidden[:, 4] = True  # the second negative of the second row, for everybody
    ours = found(vectors(), hidden)
    assert float(ours.gradient[1 * (1 + GROUP) + 2].abs().max()) == 0.0
    assert float(ours.loss) < float(found(vectors()).loss)


def test_accuracy_is_the_share_of_queries_whose_positive_is_first() -> None:
    made = vectors().view(QUERIES, 1 + GROUP, WIDTH)
    made[:, 1] = made[:, 0] * 2
    assert float(found(made.flatten(0, 1)).accuracy) == 1.0
    made[:3, 1] = -made[:3, 0]
    assert float(found(made.flatten(0, 1)).accuracy) == pytest.approx(1 - 3 / QUERIES)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [0, 0.5, 0.5]),
        ("weightedmean", [0, 1 / 3, 2 / 3]),
        ("lasttoken", [0, 0, 1]),
        ("cls", [1, 0, 0]),
    ],
)
def test_weights_of_each_pooling_count_from_behind_the_instruction(pooling: str, expected: list[float]) -> None:
    pooled = torch.tensor([[False, True, True, False], [True, True, True, True]])
    made = padded(pooled, pooling=pooling)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(made[0], torch.tensor([*expected, 0.0]))
    torch.testing.assert_close(made.sum(1), torch.ones(2))
    end_to_end = flat(torch.tensor([False, True, True, True]), torch.tensor([3, 1]), pooling=pooling)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(end_to_end, torch.tensor([[*expected, 0.0], [0.0, 0.0, 0.0, 1.0]]))
