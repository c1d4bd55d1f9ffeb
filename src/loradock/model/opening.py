"""What a base is opened with beyond its files: storage, stretched positions, rows of new tokens, a scalar head.

One value for whoever opens a base: training, inference, embedding, merge, a model card, a run that goes on with an
adapter. One more of a kind is a field of `Opening`, and what it is to a model and to people is said here alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.config.sections.model import ModelConfig
from loradock.errors import ModelError
from loradock.model import adapter_tensors, new_tokens, reward_head, rope_scaling
from loradock.model.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from loradock.config.schema import RunConfig
    from loradock.model.adapter_files import Settings
    from loradock.model.source import BaseModel

LOADED = ("quantization", "double_quant", "compute_dtype", "rope_scaling", "rope_factor")
"""Keys of `model` that say how a base is loaded, under the same names in training.json."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """`model`: the base, its storage and positions; `tokens`: texts that have rows of their own; `has_head`: scores."""

    model: ModelConfig
    tokens: tuple[str, ...] = ()
    has_head: bool = False

    @classmethod
    def of(cls, config: RunConfig) -> Opening:
        """That of a run."""
        return cls(
            model=config.model, tokens=tuple(config.tokenizer.add_tokens), has_head=config.objective_spec.has_head
        )

    def parameters(self, config: RunConfig, base: BaseModel, model: Any) -> dict[str, Any]:
        """Weights that it adds, as `ModelFacts` names them. ModelError for a base that cannot be opened so.

        `model`: bare, on any device.
        """
        rope_scaling.check_taken(model, base.scaling, name=base.name)
        return {
            "row_parameters": new_tokens.check(config, base, model),
            "head_parameters": reward_head.check(config, base, model),
        }

    def put(self, model: Any, base: BaseModel) -> dict[str, list[int]] | None:
        """Give a base in memory what is trained beside LoRA, in place: PEFT's trainable_token_indices, where any are.

        Storage and positions it has since it was read.
        """
        rows = new_tokens.put_rows(model, open_tokenizer(base), self.tokens) if self.tokens else None
        if self.has_head:
            reward_head.put(model)
        return rows

    @property
    def task(self) -> str:
        """PEFT's word for what the adapter is for."""
        return reward_head.TASK if self.has_head else "CAUSAL_LM"

    def notes(self, base: BaseModel) -> list[str]:
        """What is said of it before a training."""
        return [*new_tokens.served(self.tokens), *rope_scaling.notes(base.scaling)]

    def refuse_other(self, adapter: Opening, directory: Path) -> None:
        """ModelError where a run that is opened so cannot go on with an adapter in a directory, opened otherwise.

        Another storage of the same base is no other base.
        """
        rope_scaling.refuse_other(self.model, adapter.model, directory=directory)
        if adapter.tokens != self.tokens:
            what = f"{new_tokens.KEY} {list(self.tokens)}: the adapter in lora.adapter has {list(adapter.tokens)}"
            raise ModelError(f"{what}, and the run continues it", hint=f"leave out {new_tokens.KEY}")


def fit(model: Any, settings: Settings, shapes: Mapping[str, tuple[int, ...]], *, adapter: Path) -> Collection[str]:
    """Give a bare model, in place, what the adapter of a directory needs below it; the names of weights it holds whole.

    `settings` and `shapes` (of its tensors, by key) are the adapter's. ModelError where they do not fit.
    """
    filled = adapter_tensors.fit_rows(model, shapes, adapter=adapter)
    new_tokens.fit(model, settings, adapter=adapter)
    if reward_head.is_head_of(settings):
        reward_head.put(model)
    return filled


@dataclass(frozen=True, kw_only=True)
class Lines:
    """How plain transformers opens a base so, in Python: lines `before` it is read, `argument`s, and lines `after`."""

    before: str
    argument: str
    after: str


def in_python(config: Mapping[str, Any], name: str, pin: str) -> Lines:
    """That of a recorded configuration, of whatever age. `pin`: the argument for the base's revision, or nothing."""
    model, tokenizer = config["model"], config.get("tokenizer") or {}
    before, argument = rope_scaling.in_python(model, name, pin)
    return Lines(before=before, argument=argument, after=new_tokens.RESIZED if tokenizer.get("add_tokens") else "")
