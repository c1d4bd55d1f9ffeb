"""The reference's log-probabilities, computed as they come in an answer's first epoch, and kept for those that follow.

They are a part of the run's state, and lie in its checkpoints: a run that is cut off goes on with the values that it
had, and computes the others in the micro-batches in which it would have computed them anyway.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed

from loradock.training.passes import Passes

PART = "reference"
"""Their name among the parts of a checkpoint."""
CHANGES_NO_REFERENCE = (
    *("train.", "preference.", "checkpoints.", "evaluation."),
    *("plan.steps", "plan.optimizer", "world_size"),
)
"""Fields of a fingerprint that the reference does not depend on; what packing and dtypes come to stands in `plan.`."""


def key_of(fingerprint: Mapping[str, str]) -> str:
    """The digest of all that the values depend on: base, first adapter, rows as tokens, lengths, engine, versions."""
    fields = {name: text for name, text in fingerprint.items() if not name.startswith(CHANGES_NO_REFERENCE)}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class KeptReference:
    """A value for each document that is trained on, float32 on the device; the same on all ranks.

    A stateful part of checkpoints. Values of another key are dropped, and computed again.
    """

    def __init__(self, documents: int, *, key: str, device: torch.device) -> None:
        self.key = key
        self.values = torch.zeros(documents, device=device)
        self.is_known = torch.zeros(documents, dtype=torch.bool)  # on the host: what is computed depends on it

    def known(self, documents: torch.Tensor) -> torch.Tensor | None:
        """Those of documents (int64 on the host), float32 on the device; None where one of them is not known."""
        return self.values[documents.to(self.values.device)] if bool(self.is_known[documents].all()) else None

    def keep(self, documents: torch.Tensor, values: torch.Tensor) -> None:
        """Of a document that comes twice, the first value."""
        unique, first = np.unique(documents.numpy(), return_index=True)
        places = torch.from_numpy(unique)
        self.values[places.to(self.values.device)] = values[torch.from_numpy(first).to(values.device)]
        self.is_known[places] = True

    def state_dict(self) -> dict[str, Any]:
        """The tensors themselves."""
        return {"key": self.key, "values": self.values, "is_known": self.is_known}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Those of a checkpoint, where they are this run's."""
        if state["key"] == self.key and len(state["values"]) == len(self.values):
            self.values.copy_(state["values"])
            self.is_known.copy_(state["is_known"])


class StepReference:
    """The reference of one step's answers: known before it, or computed in each micro-batch and kept after the last.

    `documents`: which ones the step has, int64 in the order of their places. All ranks compute them, or none does.
    """

    def __init__(self, kept: KeptReference | None, documents: torch.Tensor) -> None:
        self.kept, self.documents = kept, documents
        self.known = kept.known(documents) if kept else None
        self.computed = torch.zeros(len(documents), device=kept.values.device) if kept else None

    def of(self, places: torch.Tensor, compute: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        """Of a micro-batch's documents at these places; None where the loss has no reference."""
        if self.known is not None:
            return self.known[places.clamp(min=0).to(self.known.device)]
        values = compute()
        if self.computed is not None and values is not None:
            own = torch.nonzero(places >= 0)[:, 0]
            self.computed[places[own].to(values.device)] = values[own.to(values.device)]
        return values

    def close(self, backend: Passes) -> None:
        """Keep what was computed, on all ranks."""
        if self.kept is None or self.computed is None or self.known is not None:
            return
        if torch.distributed.is_initialized():
            with backend.waiting():
                torch.distributed.all_reduce(self.computed)  # one rank has a value, the others zero: the same bits
        self.kept.keep(self.documents, self.computed)
