"""Weight files of a model directory: safetensors, their index, and a pickle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from fuzz.kinds.base import Kind
from fuzz.kinds.model_parts import PLAN, TRAIN, make
from fuzz.mutate import any_of, near_start, of_bytes, of_json

HEADER_BYTES = 2_000
SHARD_BYTES = 100_000


def in_header(content: bytes, draw: Random) -> bytes:
    """Another JSON header, whose length is told as it is."""
    length = int.from_bytes(content[:8], "little")
    header = of_json(content[8 : 8 + length], draw)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def in_length(content: bytes, draw: Random) -> bytes:
    """Another length of the header."""
    length = draw.choice((0, 1, 7, 1 << 20, 99_999_999, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1))
    return length.to_bytes(8, "little") + content[8:]


def make_sharded(folder: Path) -> None:
    """The same model in several files, with their index."""
    from transformers import AutoModelForCausalLM

    make(folder)
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    (folder / "model" / "model.safetensors").unlink()
    model.save_pretrained(folder / "model", max_shard_size=SHARD_BYTES)


def make_pickled(folder: Path) -> None:
    """The same model as older versions of torch saved it."""
    import torch
    from safetensors.torch import load_file

    make(folder)
    whole = folder / "model" / "model.safetensors"
    torch.save(load_file(whole), folder / "model" / "pytorch_model.bin")
    whole.unlink()


def malicious(content: bytes, draw: Random) -> bytes:
    """Pickles that are no state dict, or that call what they please."""
    import io
    import os
    import pickle

    import torch

    class Calls:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, ("echo called",)

    stream = io.BytesIO()
    torch.save(draw.choice(([], {"a": 1}, {1: torch.zeros(2)}, {"a": Calls()}, torch.zeros(3), None)), stream)
    plain = pickle.dumps(draw.choice(({"a": 1}, Calls(), [1, 2])), protocol=draw.choice((0, 2, 4)))
    return draw.choice((stream.getvalue(), plain, b"", content[: len(content) // 2]))


SPOILT_HEADER = any_of(near_start(HEADER_BYTES), in_header, in_header, in_length, of_bytes)
HEADER = Kind(
    name="safetensors header", make=make, file="model/model.safetensors", mutate=SPOILT_HEADER, command=PLAN, share=0.2
)
WEIGHTS = Kind(
    name="safetensors, trained",
    make=make,
    file="model/model.safetensors",
    mutate=SPOILT_HEADER,
    command=TRAIN,
    share=0.3,
)
INDEX = Kind(
    name="weight index, trained",
    make=make_sharded,
    file="model/model.safetensors.index.json",
    mutate=any_of(of_json, of_json, of_bytes),
    command=TRAIN,
    share=0.2,
)
PICKLE = Kind(
    name="pickled weights, trained",
    make=make_pickled,
    file="model/pytorch_model.bin",
    mutate=any_of(of_bytes, near_start(HEADER_BYTES), malicious),
    command=TRAIN,
    share=0.2,
)
