"""What the memory models of both engines share: dtypes, the base's weights, the loader's workers. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from loradock.catalog import storages
from loradock.facts import Facts, ModelFacts

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
RUNTIME_BYTES = 700 << 20
"""CUDA's context and libraries, where no GPU can be asked. An assumption: 400 to 700 MiB are seen by GPU and driver."""
CPU_RUNTIME_BYTES = 750 << 20
"""Of a process that computes on a CPU: 745 MiB are resident once the fast engine's libraries are imported, 847 with
TRL's; 434 and 497 of them are its own, the rest are the libraries' files."""
LOADER_MOST_WORKERS = 2
LOADER_PREFETCH = 4
"""Batches that each worker of the data loader keeps ready."""
ROW_COPIES = 3
"""PEFT puts trained rows into a copy of the embedding and one of the head in each pass; a gradient of one at a time."""


def weight_bytes(model: ModelFacts, *, quantization: str, double_quant: bool, dtype: str) -> int:
    """Bytes of the frozen base: quantised linears, and everything else in the compute dtype."""
    storage = storages.of(quantization)
    bits = storage.weight_bits(8 * BYTES[dtype]) + storage.scale_bits(double_quant=double_quant)
    reached = model.reached_parameters - model.dense_parameters
    return int(reached * bits / 8) + (model.parameters - reached) * BYTES[dtype]


def planned_weights(parts: Mapping[str, int]) -> int:
    """Of bytes by component: those of the frozen matrices."""
    return sum(parts.get(name, 0) for name in ("base weights", "experts"))


def row_bytes(model: ModelFacts, *, dtype: str) -> int:
    """Bytes of those copies in one of PEFT's passes; 0 without new tokens."""
    return ROW_COPIES * model.vocabulary * model.hidden * BYTES[dtype] if model.row_parameters else 0


def loader_workers(facts: Facts) -> int:
    """Loader workers of one process that feeds a GPU: one CPU is its own, and more than two have nothing to do."""
    return max(0, min(LOADER_MOST_WORKERS, facts.cpus // facts.processes_here - 1))


def widest_input(model: ModelFacts) -> int:
    """Inputs of the widest linear layer: the MLP's inner size."""
    return max((layer.columns for layer in model.linears), default=model.hidden)


def widest_matrix(model: ModelFacts) -> int:
    """Weights of the largest linear layer, or of one expert's largest matrix."""
    return max((matrix.rows * matrix.columns for matrix in (*model.linears, *model.experts)), default=0)


def of_memory(need: int, have: int) -> str:
    """Bytes that are needed of those there are, as a person reads them."""
    return f"{need / 2**30:.1f} of {have / 2**30:.1f} GiB"
