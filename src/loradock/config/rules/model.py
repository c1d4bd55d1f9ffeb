"""Rules about the base, its adapter and its tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator

from loradock.catalog.objectives.preference import LOSSES
from loradock.config.rules.base import KeyProblem, Rule, repeated
from loradock.config.schema import RunConfig
from loradock.config.sections.values import MOST
from loradock.text.suggest import did_you_mean


def _remote_code_names_the_model(config: RunConfig) -> Iterator[KeyProblem]:
    trusted = config.model.trust_remote_code
    if trusted is not None and trusted != config.model.name:
        what = f'model.trust_remote_code "{trusted}" does not repeat model.name "{config.model.name}"'
        hint = f"--set model.trust_remote_code={config.model.name}, or delete the key"
        yield KeyProblem(keys=("model.trust_remote_code", "model.name"), what=what, hint=hint)


def _base_can_change(config: RunConfig) -> Iterator[KeyProblem]:
    if config.lora.init in ("pissa", "olora") and config.model.storage.is_quantised:
        what = f"lora.init {config.lora.init} changes the base weights, and {config.model.quantization} ones are fixed"
        hint = "--set model.quantization=none, or --set lora.init=default"
        yield KeyProblem(keys=("lora.init", "model.quantization"), what=what, hint=hint)


def _first_adapter_is_one(config: RunConfig) -> Iterator[KeyProblem]:
    if config.lora.adapter is not None and config.lora.init != "default":
        what = f"lora.adapter gives the first values, and lora.init {config.lora.init} others: one of them only"
        yield KeyProblem(keys=("lora.init", "lora.adapter"), what=what, hint="--set lora.init=default")


def _orthogonal_base_is_whole(config: RunConfig) -> Iterator[KeyProblem]:
    if config.lora.init == "orthogonal" and config.model.storage.is_quantised:
        what = f"lora.init orthogonal needs unquantised base weights, not {config.model.quantization} ones"
        hint = "--set model.quantization=none, or --set lora.init=default"
        yield KeyProblem(keys=("lora.init", "model.quantization"), what=what, hint=hint)


def _orthogonal_rank_is_even(config: RunConfig) -> Iterator[KeyProblem]:
    if config.lora.init != "orthogonal":
        return
    if config.lora.rank % 2:
        what = f"lora.init orthogonal needs an even lora.rank, not {config.lora.rank}"
        yield KeyProblem(keys=("lora.rank", "lora.init"), what=what, hint=f"--set lora.rank={config.lora.rank + 1}")
    for pattern, rank in config.lora.rank_pattern.items():
        if rank % 2:
            what = f"lora.init orthogonal needs even ranks, and lora.rank_pattern has {pattern}: {rank}"
            hint = f"--set 'lora.rank_pattern={{{pattern}: {rank + 1}}}'"
            yield KeyProblem(keys=("lora.rank_pattern", "lora.init"), what=what, hint=hint)


def _patterns_are_regular(config: RunConfig) -> Iterator[KeyProblem]:
    for key, patterns in (("rank_pattern", config.lora.rank_pattern), ("alpha_pattern", config.lora.alpha_pattern)):
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                what = f"lora.{key}: {pattern!r} is not a regular expression: {error}"
                yield KeyProblem(keys=(f"lora.{key}",), what=what, hint=f"--set 'lora.{key}={{q_proj: 8}}'")


def _targets_are_named(config: RunConfig) -> Iterator[KeyProblem]:
    targets = config.lora.targets
    if isinstance(targets, str):
        return
    if not targets or "" in targets:
        what = "lora.targets names no layer"
        yield KeyProblem(keys=("lora.targets",), what=what, hint="--set lora.targets=all-linear")
    yield from repeated("lora.targets", targets)
    for module in sorted(set(targets) & set(config.lora.modules_to_save)):
        what = f"{module} is in lora.targets and in lora.modules_to_save: one of them only"
        yield KeyProblem(keys=("lora.modules_to_save", "lora.targets"), what=what, hint="delete it from one of them")


def _new_tokens_are_texts(config: RunConfig) -> Iterator[KeyProblem]:
    key, tokens = "tokenizer.add_tokens", config.tokenizer.add_tokens
    if not tokens:
        return
    yield from repeated(key, tokens)
    if any(not token.strip() for token in tokens):
        yield KeyProblem(keys=(key,), what=f"{key} names an empty text", hint="delete it")
    if config.objective_spec.embeds:
        what = f"objective {config.objective} embeds texts, and its exports take plain LoRA: no rows of new tokens"
        yield KeyProblem(keys=(key, "objective"), what=what, hint=f"--set {key}=[]")
    if config.lora.init in ("pissa", "olora"):
        what = f"lora.init {config.lora.init} saves its adapter as a difference from the first, which rows do not have"
        yield KeyProblem(keys=(key, "lora.init"), what=what, hint="--set lora.init=default")


def _scaled_positions_have_a_factor(config: RunConfig) -> Iterator[KeyProblem]:
    model = config.model
    if model.rope_scaling != "off" and model.rope_factor == 1:
        what = f"model.rope_scaling {model.rope_scaling} stretches positions by model.rope_factor, which is 1"
        hint = "--set model.rope_factor=4 (data.max_length over the base's max_position_embeddings, rounded up)"
        yield KeyProblem(keys=("model.rope_factor", "model.rope_scaling"), what=what, hint=hint)


def _losses_can_be_added(config: RunConfig) -> Iterator[KeyProblem]:
    key, several = "preference.loss", config.preference.loss
    if several == {}:
        yield KeyProblem(keys=(key,), what=f"{key} names no loss", hint=f"--set '{key}={{dpo: 0.8, bco_pair: 0.2}}'")
    for name, weight in several.items() if isinstance(several, dict) else ():
        if name not in LOSSES:
            can_be = ", ".join(each for each, loss in LOSSES.items() if not loss.alone)
            hint = did_you_mean(name, LOSSES) or f"it is one of {can_be}"
            yield KeyProblem(keys=(key,), what=f"{key} adds {name}, which is not a loss", hint=hint)
        elif LOSSES[name].alone:
            what = f"{key} adds {name}, which is learned by alone: {LOSSES[name].alone}"
            yield KeyProblem(keys=(key,), what=what, hint=f"--set {key}={name}")
        elif not 0 < weight <= MOST:
            what = f"{key} adds {name} with the weight {weight:g}, which is not a number above 0 and at most {MOST:,}"
            yield KeyProblem(keys=(key,), what=what, hint=f"delete {name}, or give it a weight such as 0.2")


def _reward_head_is_alone(config: RunConfig) -> Iterator[KeyProblem]:
    """What sequence classification has no place for, or what would be saved as a difference from the first head."""
    if not config.objective_spec.has_head:
        return
    lora = config.lora
    settings = {
        "tokenizer.add_tokens": (config.tokenizer.add_tokens, "--set tokenizer.add_tokens=[]"),
        "lora.modules_to_save": (lora.modules_to_save, "--set lora.modules_to_save=[]"),
        "lora.init": (lora.init in ("pissa", "olora"), "--set lora.init=default"),
        "lora.adapter": (
            lora.adapter,
            "loradock merge RUN DIR makes a base of it, and --model DIR begins with that",
        ),
    }
    for key, (is_set, hint) in settings.items():
        if is_set:
            what = (
                f"{key} cannot be used with objective {config.objective}, whose head is all that is trained beside LoRA"
            )
            yield KeyProblem(keys=(key, "objective"), what=what, hint=hint)


RULES: tuple[Rule, ...] = (
    _remote_code_names_the_model,
    _base_can_change,
    _first_adapter_is_one,
    _orthogonal_base_is_whole,
    _orthogonal_rank_is_even,
    _patterns_are_regular,
    _targets_are_named,
    _new_tokens_are_texts,
    _scaled_positions_have_a_factor,
    _losses_can_be_added,
    _reward_head_is_alone,
)
