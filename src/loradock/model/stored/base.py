"""What a way of storing weights is, of those that are made dense one tensor at a time while files are read.

Imports torch only where a weight is made dense.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.text.amounts import some_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Header:
    """A tensor of the files as their headers have it: `dtype` by safetensors' name."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Weight(ABC):
    """A weight in its dense `shape` and `dtype` (torch's name); `parts`: the tensors of the files that hold it.

    The first part is that in whose place it stands.
    """

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[str, ...]

    @abstractmethod
    def dense(self, *parts: torch.Tensor) -> torch.Tensor:
        """The weight of its parts, in their order."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What files hold in one way: `weights` by the names of a model, and tensors that are of no use once dense."""

    weights: Mapping[str, Weight]
    unused: frozenset[str] = frozenset()

    @property
    def part_names(self) -> frozenset[str]:
        """Names of tensors of the files that a model does not have."""
        return self.unused.union(*(weight.parts for weight in self.weights.values())) - self.weights.keys()


class Format(ABC):
    """A way of storing weights. `method`: its `quant_method` in config.json; `title`: what people call it.

    `python`: how transformers is told to make such weights dense.
    """

    method: str
    title: str
    python: str

    def refusal(self, settings: Mapping[str, Any]) -> str | None:
        """Why files with this `quantization_config` are not opened, to be said after the model's name."""
        del settings
        return None

    @abstractmethod
    def find(self, tensors: Mapping[str, Header], settings: Mapping[str, Any], *, dtype: str) -> Contents:
        """What tensors hold so, to be made dense in `dtype`. ModelError for parts that do not belong together."""


def table(value: Any) -> Mapping[str, Any]:
    """A part of a config.json; empty where it is none."""
    return value if isinstance(value, Mapping) else {}


def is_block(value: Any) -> bool:
    """Whether a value of a config.json is a number of rows and one of columns."""
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    return is_pair and all(type(size) is int and size > 0 for size in value)


def first_names(names: Iterable[str]) -> str:
    """The first of several names, sorted."""
    return some_of(sorted(names), most=3)
