"""Rules across keys: what cannot be trained as asked. To add one: a function, and its name in the RULES of its file.

A rule looks at a typed configuration and yields what is wrong; all rules run, so that every mistake is told at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from loradock.config.rules import model, sources, training
from loradock.config.rules.base import KeyProblem, Rule
from loradock.config.rules.hub import HubId, hub_ids, is_hub_model
from loradock.config.rules.training import has_validation
from loradock.config.schema import RunConfig

__all__ = ["INPUTS", "RULES", "HubId", "KeyProblem", "Rule", "has_validation", "hub_ids", "is_hub_model"]


def _model_is_given(config: RunConfig) -> Iterator[KeyProblem]:
    if not config.model.name:
        yield KeyProblem(keys=("model.name",), what="no model", hint="give --model DIR or model.name")


def _data_are_given(config: RunConfig) -> Iterator[KeyProblem]:
    if not config.data.sources:
        yield KeyProblem(keys=("data.sources",), what="no data", hint="give --data FILE or data.sources")


INPUTS: tuple[Rule, ...] = (_model_is_given, _data_are_given)

RULES: tuple[Rule, ...] = (*sources.RULES, *model.RULES, *training.RULES)
