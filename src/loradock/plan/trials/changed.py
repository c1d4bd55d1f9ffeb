"""A baseline with settings changed: the configuration and its plan anew, without touching the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from loradock.config import rules
from loradock.config.schema import RunConfig
from loradock.config.strict_yaml import parse_value
from loradock.errors import ConfigError, Problem
from loradock.facts import DataFacts, ModelFacts
from loradock.plan import plan as plans
from loradock.plan.trials.base import Baseline

AtLength = Callable[[int], DataFacts]
"""A longest row in tokens -> the data set cut to it."""


def changed(baseline: Baseline, settings: Iterable[str], *, at_length: AtLength | None = None) -> Baseline:
    """The baseline with `settings` (KEY=VALUE) laid over it, planned anew.

    `at_length` counts the data set at another length; without it `estimated` does. Raises ConfigError for what the
    schema or a rule refuses, and what `plan.make` raises.
    """
    config = changed_config(baseline.config, settings)
    model, data = baseline.plan.model, baseline.plan.data
    if config.lora.targets != baseline.config.lora.targets:
        model = replace(model, targets=targets_of(model, config.lora.targets))
    length = config.data.max_length
    if length != baseline.config.data.max_length and isinstance(length, int):
        data = at_length(length) if at_length else estimated(data, length)
    plan = plans.make(config, facts=baseline.facts, model=model, data=data)
    return Baseline(config=config, plan=plan, facts=baseline.facts)


def changed_config(config: RunConfig, settings: Iterable[str]) -> RunConfig:
    """The configuration with `settings` laid over it. ConfigError with all that is wrong."""
    values: dict[str, Any] = config.model_dump(mode="json")
    for setting in settings:
        key, _, text = setting.partition("=")
        here = values
        *sections, last = key.split(".")
        for name in sections:
            here = here[name]
        here[last] = parse_value(text, file=f"--set {key}")
    what = "the configuration has problems"
    try:
        new = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(what, problems=[Problem(what=each["msg"]) for each in error.errors()]) from error
    if found := [finding for rule in rules.RULES for finding in rule(new)]:
        raise ConfigError(what, problems=[Problem(what=each.what, hint=each.hint) for each in found])
    return new


def targets_of(model: ModelFacts, wanted: str | tuple[str, ...]) -> tuple[str, ...]:
    """Dotted names of the layers that these targets get an adapter on."""
    names = tuple(layer.name for layer in model.linears)
    if isinstance(wanted, str):
        return names
    return tuple(name for name in names if any(f".{name}".endswith(f".{target}") for target in wanted))


def lost_shares(data: DataFacts, length: int) -> tuple[float, float]:
    """The least and the most of all tokens that a cut at `length` can take, by the mean and the longest row.

    Least: all rows are as long as the mean. Most: all tokens lie in rows as long as the longest (what is cut off is a
    convex function of a row's length, so these are its bounds).
    """
    least = max(0.0, 1 - length / data.mean_tokens)
    most = max(0.0, 1 - length / data.longest_tokens)
    return least, most


def estimated(data: DataFacts, length: int) -> DataFacts:
    """The data set with rows cut at `length` tokens, by its mean and its longest row alone.

    Lengths are taken to be spread exponentially, so that a row loses `mean x exp(-length / mean)` tokens on average, an
    assumption, which `lost_shares` bounds. `data stats` counts.
    """
    if length >= data.longest_tokens:
        return replace(data, limit_tokens=length)
    least, most = lost_shares(data, length)
    share_kept = 1 - min(most, max(least, math.exp(-length / data.mean_tokens)))
    tokens = int(data.tokens * share_kept)
    return replace(
        data,
        tokens=tokens,
        supervised_tokens=int(data.supervised_tokens * share_kept),
        limit_tokens=length,
        longest_tokens=length,
        lost_tokens=data.lost_tokens + data.tokens - tokens,
    )
