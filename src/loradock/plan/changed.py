"""A plan with settings changed: the configuration and its plan again, without touching the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from loradock.config import rules
from loradock.config.schema import RunConfig
from loradock.config.sections.model import names_experts
from loradock.config.strict_yaml import parse_value
from loradock.errors import ConfigError, Problem
from loradock.facts import DataFacts, ModelFacts
from loradock.plan import planner
from loradock.plan.context import Context
from loradock.plan.row_cut import estimated

AtLength = Callable[[int], DataFacts]
"""A longest row in tokens -> the data set cut to it."""


def changed(context: Context, settings: Iterable[str], *, at_length: AtLength | None = None) -> Context:
    """The context with `settings` (KEY=VALUE) laid over it, planned again.

    `at_length` counts the data set at another length; without it `estimated` does. Raises ConfigError for what the
    schema or a rule refuses, and what `planner.make` raises.
    """
    config = changed_config(context.config, settings)
    model, data = context.model, context.data
    if config.lora.targets != context.config.lora.targets:
        targets, experts = targets_of(model, config.lora.targets)
        model = replace(model, targets=targets, expert_targets=experts)
    length = config.data.max_length
    if length != context.config.data.max_length and isinstance(length, int):
        data = at_length(length) if at_length else estimated(data, length, long_rows=config.data.long_rows)
    plan = planner.make(config, facts=context.facts, model=model, data=data)
    return planner.context_of(plan, config, facts=context.facts)


def changed_config(config: RunConfig, settings: Iterable[str]) -> RunConfig:
    """The configuration with `settings` laid over it. ConfigError with all that is wrong."""
    values: dict[str, Any] = config.model_dump(mode="json")
    for setting in settings:
        key, _, text = setting.partition("=")
        section = values
        *sections, last = key.split(".")
        for name in sections:
            section = section[name]
        section[last] = parse_value(text, file=f"--set {key}")
    what = "the configuration has problems"
    try:
        new = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(what, problems=[Problem(what=problem["msg"]) for problem in error.errors()]) from error
    if problems := [finding for rule in rules.RULES for finding in rule(new)]:
        raise ConfigError(what, problems=[Problem(what=problem.what, hint=problem.hint) for problem in problems])
    return new


def targets_of(model: ModelFacts, setting: str | tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Dotted names of the layers that these targets get an adapter on, and of the matrices of experts."""
    names = tuple(layer.name for layer in model.linears)
    if isinstance(setting, str) or "all-linear" in setting:
        linears = names
    else:
        linears = tuple(name for name in names if any(f".{name}".endswith(f".{target}") for target in setting))
    chosen = () if isinstance(setting, str) else setting
    experts = tuple(
        matrix.name for matrix in model.experts if any(names_experts(matrix.name, target) for target in chosen)
    )
    return linears, experts
