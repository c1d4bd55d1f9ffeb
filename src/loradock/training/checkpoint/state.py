"""What a checkpoint holds besides its manifest, as bytes: the adapter, and all that the next step depends on.

    adapter_model.safetensors   the trainable weights, named as peft names them
    adapter_config.json         peft's own description of the adapter
    training_state.pt           optimiser, gradient scaler, what the objective keeps, and each process's random state

Every engine writes and reads the same three, so that a run may be continued by another one. The learning rate is not
among them: it follows from the configuration and the step.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from loradock.errors import NoCheckpoint
from loradock.model import adapters
from loradock.model.export import WEIGHTS
from loradock.training.checkpoint import safetensors_stream
from loradock.training.checkpoint.snapshot import tensors
from loradock.training.checkpoint.store import Checkpoint, Files
from loradock.training.run_dir import disk_space

CONFIG = "adapter_config.json"
STATE = "training_state.pt"

Stateful = Mapping[str, Any]
"""optimizer, scaler, what the objective keeps -> what has state_dict() and load_state_dict(); None: nothing has."""


@dataclass(frozen=True, kw_only=True)
class RandomState:
    """The states of every generator that training draws from, of one process: bytes of them are a few kilobytes."""

    python: Any
    numpy: Any
    torch: Any
    cuda: Any

    @classmethod
    def now(cls) -> RandomState:
        """A copy of the present state; nothing is read back from a GPU, whose generator counts on the host."""
        kind, keys, *rest = np.random.get_state(legacy=True)
        words = np.asarray(keys).tolist()  # what reads it back takes plain values and tensors only
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
        return cls(python=random.getstate(), numpy=(kind, words, *rest), torch=torch.get_rng_state(), cuda=cuda)

    def restore(self) -> None:
        """Put every generator back."""
        random.setstate(self.python)
        kind, keys, *rest = self.numpy
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
        torch.set_rng_state(self.torch)
        if self.cuda is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.cuda)


def of_run(model: Any, parts: Stateful, *, random_states: Sequence[RandomState]) -> dict[str, Any]:
    """What each file of a checkpoint holds, by its name: the tensors themselves, which the next step changes.

    `random_states` has one entry a process, in the order of their ranks.
    """
    settings = model.peft_config["default"].to_dict() | {"inference_mode": True}
    return {
        WEIGHTS: adapters.state(model),
        CONFIG: {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()},
        STATE: {
            "random": [vars(random_state) for random_state in random_states],
            **{name: part.state_dict() if part is not None else None for name, part in parts.items()},
        },
    }


def size_bytes(content: Mapping[str, Any]) -> int:
    """What files of this content take on a disk, and a little more."""
    values = sum(tensor.nbytes for tensor in tensors((content[WEIGHTS], content[STATE])))
    names = len(content[WEIGHTS]) * disk_space.TENSOR_BYTES
    return values + names + len(content[STATE]["random"]) * disk_space.STATE_BYTES


def as_files(content: Mapping[str, Any]) -> Files:
    """The files of a checkpoint by name, from what `of_run` gave or a copy of it; they are made as they are written."""
    return {
        WEIGHTS: partial(safetensors_stream.write, content[WEIGHTS]),
        CONFIG: (json.dumps(content[CONFIG], indent=2, sort_keys=True) + "\n").encode(),
        STATE: partial(torch.save, content[STATE]),
    }


def restore_adapter(model: Any, checkpoint: Checkpoint) -> None:
    """Put the adapter of a verified checkpoint into the model, in place. NoCheckpoint where it is another one's."""
    content = checkpoint.read(WEIGHTS)
    try:
        adapters.restore(model, content)
    except SafetensorError as error:
        raise _foreign(checkpoint, WEIGHTS, error) from error


def restore(checkpoint: Checkpoint, parts: Stateful, *, rank: int) -> None:
    """Put optimiser, scaler and random state back, as rank `rank` left them.

    What a person sets (learning rate, weight decay, betas) stays as this attempt has it: it may be an allowed change.

    A process that the run did not have before draws from a state that follows from rank 0's and its own rank.
    """
    content = checkpoint.read(STATE)
    optimizer = parts["optimizer"]
    asked = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        for name, part in parts.items():
            if part is not None and state.get(name) is not None:  # what objectives keep came after the first runs
                part.load_state_dict(state[name])
        saved = state["random"]
        RandomState(**saved[min(rank, len(saved) - 1)]).restore()
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch's, numpy's and Python's readers of what another version wrote raise anything
        raise _foreign(checkpoint, STATE, error) from error
    for group, settings in zip(optimizer.param_groups, asked, strict=True):
        group.update(settings)
    if rank >= len(saved):
        torch.manual_seed(torch.initial_seed() + rank)


def _foreign(checkpoint: Checkpoint, name: str, error: Exception) -> NoCheckpoint:
    """For a file that is as it was committed, and that a library does not take."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return NoCheckpoint(
        f"{checkpoint.path / name} was written by another version, or is none of loradock's: {first}",
        hint="use --fresh or another --output to start a new run",
    )


def tensors_of(parts: Stateful) -> Iterable[torch.Tensor]:
    """Every floating-point tensor of the optimiser's state."""
    optimizer = parts.get("optimizer")
    for values in optimizer.state_dict()["state"].values() if optimizer is not None else ():
        yield from (value for value in values.values() if torch.is_tensor(value) and value.is_floating_point())
