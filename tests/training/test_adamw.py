"""AdamW: each of ours that a CPU has is the published algorithm over 50 steps, in weights and in state."""

from __future__ import annotations

import pytest
import torch

from loradock.catalog.optimizers import OPTIMIZERS
from loradock.config.sections.train import TrainConfig
from loradock.model import optimizer

ON_CPU = [name for name, known in OPTIMIZERS.items() if known.kind == "AdamW" and "cpu" in known.devices]
RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.95), 1e-6, 0.1


@pytest.mark.parametrize("name", ON_CPU)
def test_fifty_steps_are_those_of_the_published_algorithm(name: str) -> None:
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(64, 32))
    expected = weights.detach().double().clone()
    mean, square = torch.zeros_like(expected), torch.zeros_like(expected)
    train = TrainConfig(learning_rate=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
    stepper = optimizer.by_name(name, [weights], **OPTIMIZERS[name].settings(train))
    for step in range(1, 51):
        weights.grad = torch.randn(64, 32)
        gradient = weights.grad.double()
        stepper.step()
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        unbiased, spread = mean / (1 - BETAS[0] ** step), (square / (1 - BETAS[1] ** step)).sqrt()
        expected = expected * (1 - RATE * DECAY) - RATE * unbiased / (spread + EPSILON)
    assert torch.allclose(weights.detach().double(), expected, rtol=0, atol=1e-5)
    state = sum(each.nbytes for each in stepper.state[weights].values() if each.shape == weights.shape)
    assert state == OPTIMIZERS[name].state_bytes * weights.numel()
