"""What a mixture's experts add to the peft backend's memory and time. Pure arithmetic.

For a pair of a token and one of its experts a pass keeps what goes into gate and activation, the activation's result,
the outputs that the router's weights multiply, and the inputs of adapters on experts (`model/experts/forward.py`;
counted by saved tensors in tests/plan/test_memory_experts.py). One expert's matrix at a time is dense.
"""

from __future__ import annotations

from loradock.facts import ExpertShape, ModelFacts

FLOAT_BYTES = 4
ROUTER_COPIES = 2
"""Of the router's answers, float32: logits and probabilities, kept in all layers for the balancing loss."""
INDEX_BYTES = 3 * 8
"""Of a pair: its place in the order of experts, and back."""


def _pairs(model: ModelFacts) -> list[tuple[ExpertShape, ExpertShape]]:
    """The two matrices of each layer's experts: into their inner width, and out of it."""
    return list(zip(model.experts[::2], model.experts[1::2], strict=True))


def kept_bytes_per_token(model: ModelFacts, *, size: int) -> float:
    """Bytes that the experts of a layer keep for a token from forward to backward; of the mean layer."""
    targets = set(model.expert_targets)
    total = 0.0
    for into, out_of in _pairs(model):
        elements = into.rows + out_of.columns + out_of.rows
        elements += sum(matrix.columns for matrix in (into, out_of) if matrix.name in targets)
        total += into.active * (size * elements + INDEX_BYTES)
    return total / max(1, model.layers)


def in_flight_bytes_per_token(model: ModelFacts, *, size: int) -> float:
    """Bytes of a token that are there at once besides: the outputs of its experts, as they are put in order."""
    return max((2 * size * out_of.active * out_of.rows for _, out_of in _pairs(model)), default=0)


def router_bytes_per_token(model: ModelFacts) -> int:
    """Bytes of a token that the routers of all layers keep, recomputed or not."""
    return sum(ROUTER_COPIES * FLOAT_BYTES * into.count for into, _ in _pairs(model))


def experts_a_layer(model: ModelFacts) -> float:
    """Experts of the mean layer, each of which is computed by itself."""
    return sum(into.count for into, _ in _pairs(model)) / max(1, model.layers)
