"""Autograd's backward pass without its engine, which wants a card for tensors that say they are on one.

The same nodes run, each once and after all that feed it, and sums of gradients are made as the engine makes them: one
addition for each further gradient that reaches a node.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import torch

GRAPH_TASK = 1
"""The engine numbers its passes; checkpointing computes a region again once a pass."""


def backward(loss: torch.Tensor) -> None:
    """The gradients of a scalar loss into the `grad` of its leaves."""
    root = loss.grad_fn
    awaited = Counter(following for node in nodes_below(root) for following, _ in edges(node))
    received: dict[Any, dict[int, torch.Tensor]] = {root: {0: torch.ones_like(loss)}}
    ready = [root]
    with mock.patch("torch._C._current_graph_task_id", return_value=GRAPH_TASK), torch.no_grad():
        while ready:
            node = ready.pop()
            gradients = run(node, received.pop(node, {}))
            for (following, place), gradient in zip(node.next_functions, gradients, strict=True):
                if following is None:
                    continue
                if gradient is not None:
                    add(received.setdefault(following, {}), place, fitted(gradient, following._input_metadata[place]))
                awaited[following] -= 1
                if not awaited[following]:
                    ready.append(following)


def nodes_below(root: Any) -> list[Any]:
    """The nodes that a backward pass from `root` runs."""
    found, waiting = {root}, [root]
    while waiting:
        for following, _ in edges(waiting.pop()):
            if following not in found:
                found.add(following)
                waiting.append(following)
    return list(found)


def edges(node: Any) -> list[Any]:
    """(node, number of its input) that this one's results go to."""
    return [edge for edge in node.next_functions if edge[0] is not None]


def run(node: Any, received: dict[int, torch.Tensor]) -> tuple[Any, ...]:
    """A node's results; nothing reached it where the gradient is zero everywhere."""
    if not received:
        return (None,) * len(node.next_functions)
    inputs = [received.get(place) for place in range(len(node._input_metadata))]
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return wanted(node, node.apply(*inputs))
    results = node(*inputs)
    return results if isinstance(results, tuple) else (results,)


def wanted(node: Any, results: Any) -> tuple[Any, ...]:
    """The results of a Function written in Python by edge: it gives one for each argument, tensor or not."""
    every = results if isinstance(results, tuple) else (results,)
    gradients = iter([each for each, is_wanted in zip(every, node.needs_input_grad, strict=True) if is_wanted])
    return tuple(None if following is None else next(gradients) for following, _ in node.next_functions)


def fitted(gradient: torch.Tensor, wanted: Any) -> torch.Tensor:
    """A gradient as the engine hands it on: in the shape and dtype of what it is the gradient of."""
    if list(gradient.shape) != list(wanted.shape):
        gradient = gradient.sum_to_size(wanted.shape)
    return gradient.to(wanted.dtype)


def add(received: dict[int, torch.Tensor], place: int, gradient: torch.Tensor) -> None:
    """Add a gradient to what reached an input so far."""
    received[place] = received[place] + gradient if place in received else gradient
