"""What a mixture's experts add to memory and time. Pure arithmetic.

For a pair of a token and one of its experts a pass of the peft backend keeps what goes into gate and activation, the
activation's result, the outputs that the router's weights multiply, and the inputs of adapters on experts
(`model/experts/forward.py`; counted by saved tensors in tests/plan/test_memory_experts.py). The fast engine keeps what
goes into gate and activation, and the ranks of adapters. One expert's matrix at a time is dense.
"""

from __future__ import annotations

from loradock.facts import ExpertShape, ModelFacts

FLOAT_BYTES = 4
ROUTER_COPIES = 2
"""Of the router's answers, float32: logits and probabilities, kept in all layers for the balancing loss."""
CLAMPED_COPIES = 3
"""What a gate with bounds keeps beside that: gate and up within them, and the sigmoid, as wide as the product."""
INDEX_BYTES = 3 * 8
"""Of a pair: its place in the order of experts, and back."""
FAST_PAIR_BYTES = 3 * 8 + 8 + 4
"""Of a pair in the fast engine: its token and its place, which expert it is of, and its weight."""


def _pairs(model: ModelFacts) -> list[tuple[ExpertShape, ExpertShape]]:
    """The two matrices of each layer's experts: into their inner width, and out of it."""
    return list(zip(model.experts[::2], model.experts[1::2], strict=True))


def kept_bytes_per_token(model: ModelFacts, *, size: int) -> float:
    """Bytes that the experts of a layer keep for a token from forward to backward; of the mean layer."""
    targets = set(model.expert_targets)
    total = 0.0
    for into, out_of in _pairs(model):
        elements = into.rows + out_of.columns + out_of.rows + CLAMPED_COPIES * model.has_clamped_gates * out_of.columns
        elements += sum(matrix.columns for matrix in (into, out_of) if matrix.name in targets)
        total += into.active * (size * elements + INDEX_BYTES)
    return total / max(1, model.layers)


def in_flight_bytes_per_token(model: ModelFacts, *, size: int) -> float:
    """Bytes of a token that are there at once besides: the outputs of its experts, as they are put in order."""
    return max((2 * size * out_of.active * out_of.rows for _, out_of in _pairs(model)), default=0)


def router_bytes_per_token(model: ModelFacts) -> int:
    """Bytes of a token that the routers of all layers keep, recomputed or not."""
    return sum(ROUTER_COPIES * FLOAT_BYTES * into.count for into, _ in _pairs(model))


def layers(model: ModelFacts) -> int:
    """Layers that have experts."""
    return len(_pairs(model))


def experts_a_layer(model: ModelFacts) -> float:
    """Experts of the mean layer, each of which is computed by itself."""
    return sum(into.count for into, _ in _pairs(model)) / max(1, model.layers)


def pairs_a_token(model: ModelFacts) -> float:
    """Experts of a token in the mean layer."""
    return sum(into.active for into, _ in _pairs(model)) / max(1, model.layers)


def gated_elements(model: ModelFacts) -> float:
    """What goes into gate and activation for a token in the mean layer, of all of its experts."""
    return sum(into.active * into.rows for into, _ in _pairs(model)) / max(1, model.layers)


def rank_elements(model: ModelFacts, *, rank: int) -> float:
    """Ranks of the adapters on a token's experts in the mean layer."""
    targets = set(model.expert_targets)
    ranks = sum(each.active * (each.own_rank or rank) for each in model.experts if each.name in targets)
    return ranks / max(1, model.layers)


def fast_router_bytes_per_token(model: ModelFacts) -> float:
    """Bytes that a layer keeps of a token in the fast engine beside elements: probabilities, and of each pair."""
    kept = sum(FLOAT_BYTES * into.count + FAST_PAIR_BYTES * into.active for into, _ in _pairs(model))
    return kept / max(1, model.layers)
