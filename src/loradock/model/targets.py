"""What LoRA gets adapters on: its targets by name, their ranks, and what it cannot reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from loradock.config.schema import RunConfig
from loradock.config.sections.model import LoraConfig, names_experts, names_layer
from loradock.errors import ModelError, Problem
from loradock.facts import ExpertShape, LinearShape, ModelFacts
from loradock.model import architecture, recurrence
from loradock.model.experts import layout, peft_layers
from loradock.text.suggest import did_you_mean

Shape = TypeVar("Shape", LinearShape, ExpertShape)


ALL_LINEAR = "all-linear"


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Dotted names of what gets an adapter: linear layers, and parameters that hold a matrix of every expert.

    `taken_for_experts`: last names of linear layers that get none, because PEFT means experts by them.
    """

    linears: tuple[str, ...]
    experts: tuple[str, ...] = ()
    taken_for_experts: tuple[str, ...] = ()


def resolve_targets(requested: str | tuple[str, ...], linears: tuple[LinearShape, ...], model: Any) -> Targets:
    """What gets an adapter; ModelError for every target that is none of the model's.

    A router, which decides what its experts learn, is in none of the words for several layers: it is adapted by name.
    """
    names = [layer.name for layer in linears]
    experts = [matrices.name for matrices in layout.matrices(model)]
    unsupported = {f"{mixer}.{layer}" for mixer, _, layers in recurrence.state_spaces(model) for layer in layers}
    unsupported |= set(layout.routers(model))
    of_experts_to_peft = peft_layers.taken_for_experts(model)
    unsupported |= {name for name in names if name.rpartition(".")[2] in of_experts_to_peft}
    usual = [name for name in names if name not in unsupported]
    chosen = (requested,) if isinstance(requested, str) else requested
    matches = {
        target: usual if target == ALL_LINEAR else [n for n in names if is_named(n, target)] for target in chosen
    }
    of_experts = {target: [name for name in experts if names_experts(name, target)] for target in chosen}
    ends_of_experts = [".".join(name.split(".")[-2:]) for name in experts]
    endings = sorted({name.rsplit(".", 1)[-1] for name in names} | set(ends_of_experts))
    lost = [target for target, names_matched in matches.items() if not names_matched and not of_experts[target]]
    if lost:
        ends = {target: kind for target in lost if (kind := end_of_model(target, model))}
        problems = [
            Problem(what=f"target {target!r} is {ends[target]}, on which loradock trains no LoRA")
            if target in ends
            else Problem(what=f"target {target!r} lies in {part}, which is left out: rows are text")
            if (part := part_of(target, model))
            else Problem(what=f"target {target!r} matches no linear layer", hint=did_you_mean(target, endings))
            for target in lost
        ]
        if len(ends) == len(lost):
            what = "LoRA targets are the output head or the embedding"
            raise ModelError(what, hint=trained_whole(chosen, lost), problems=problems)
        raise ModelError(
            "LoRA targets match nothing", hint=f"linear layers here: {', '.join(endings)}", problems=problems
        )
    expected = {name for names_matched in matches.values() for name in names_matched}
    if passed_by := sorted(name for name in expected if name.rpartition(".")[2] in of_experts_to_peft):
        kinds = ", ".join(sorted({name.rpartition(".")[2] for name in passed_by}))
        others = sorted({name.rpartition(".")[2] for name in usual})
        raise ModelError(
            f"LoRA targets {kinds}: in a {model.config.model_type} PEFT takes these names for the experts, and would "
            f"not find the adapter of {passed_by[0]} again",
            hint=f"--set lora.targets=[{','.join([*others, *(['experts'] if experts else [])])}]",
        )
    if deciding := sorted(name for name in expected if layout.is_deciding(model.get_submodule(name))):
        raise ModelError(
            f"LoRA target {deciding[0]}: this router answers with two tensors, and PEFT's layer adds to one",
            hint=f"--set lora.targets=[{','.join(sorted({name.rpartition('.')[2] for name in usual}))}]",
        )
    expected_experts = {name for names_matched in of_experts.values() for name in names_matched}
    return Targets(
        linears=tuple(name for name in names if name in expected),
        experts=tuple(name for name in experts if name in expected_experts),
        taken_for_experts=tuple(sorted(of_experts_to_peft & {name.rpartition(".")[2] for name in names})),
    )


def is_named(name: str, target: str) -> bool:
    """Whether a target of LoRA means the module of this dotted name."""
    return name == target or name.endswith(f".{target}")


def part_of(target: str, model: Any) -> str | None:
    """The part that was left out of the model, where a target names it or lies in it; else None."""
    steps = target.split(".")
    return next((module.name for module in architecture.left_out(model) if module.name.split(".")[-1] in steps), None)


def end_of_model(target: str, model: Any) -> str | None:
    """What a target is that names the output head or the input embedding; None for any other."""
    kinds = {id(model.get_output_embeddings()): "the output head", id(model.get_input_embeddings()): "the embedding"}
    kind = (kinds.get(id(module)) for name, module in model.named_modules() if name and is_named(name, target))
    return next(filter(None, kind), None)


def trained_whole(choices: Sequence[str], ends: Sequence[str]) -> str:
    """The settings that train head or embedding whole, beside LoRA on what else was asked for."""
    remaining = [target for target in choices if target not in ends]
    targets = f"[{','.join(remaining)}]" if remaining else "all-linear"
    return f"--set lora.targets={targets} --set lora.modules_to_save=[{','.join(ends)}]"


def with_rank(layer: Shape, lora: LoraConfig) -> Shape:
    """The layer with the rank that `lora.rank_pattern` gives it."""
    has_own = any(names_layer(pattern, layer.name) for pattern in lora.rank_pattern)
    return replace(layer, own_rank=lora.rank_of(layer.name)) if has_own else layer


def check_patterns(lora: LoraConfig, facts: ModelFacts) -> None:
    """ModelError for every pattern of ranks or alphas that means no layer with an adapter."""
    problems: list[Problem] = []
    adapted = (*facts.targets, *facts.expert_targets)
    kinds = sorted({name.rpartition(".")[2] for name in adapted})
    for key, patterns in (("rank_pattern", lora.rank_pattern), ("alpha_pattern", lora.alpha_pattern)):
        for pattern in patterns:
            if not any(names_layer(pattern, name) for name in adapted):
                what = f"lora.{key}: {pattern!r} means no layer that has an adapter"
                problems.append(Problem(what=what, hint=did_you_mean(pattern, kinds)))
    if problems:
        what = f"patterns of {facts.architecture}'s adapters mean nothing"
        raise ModelError(what, hint=f"--set 'lora.rank_pattern={{{kinds[0]}: {lora.rank}}}'", problems=problems)


def check_rank(lora: LoraConfig, facts: ModelFacts) -> None:
    """ModelError for a rank beyond that of every matrix that it would be added to."""
    adapted = {*facts.targets, *facts.expert_targets}
    targets = [matrix for matrix in (*facts.linears, *facts.experts) if matrix.name in adapted]
    plain = [min(linear.rows, linear.columns) for linear in targets if linear.own_rank is None]
    if plain and lora.rank > max(plain):
        most = max(plain)
        what = f"lora.rank is {lora.rank}, and no target of {facts.architecture} has more than {most} rows or columns"
        raise ModelError(what, hint=f"--set lora.rank={min(most, 16)}")
    for pattern, rank in lora.rank_pattern.items():
        widest = max(min(each.rows, each.columns) for each in targets if names_layer(pattern, each.name))
        if rank > widest:
            what = f"lora.rank_pattern: {pattern!r} has rank {rank}, and its layers {widest} rows or columns at most"
            raise ModelError(what, hint=f"--set 'lora.rank_pattern={{{pattern}: {min(widest, 16)}}}'")


def check_experts(lora: LoraConfig, facts: ModelFacts) -> None:
    """ModelError with all that PEFT's adapters on a parameter do not have, where experts get one."""
    settings = {
        f"lora.dropout={lora.dropout:g}": ("--set lora.dropout=0", lora.dropout > 0),
        "lora.dora=true": ("--set lora.dora=false", lora.dora),
        f"lora.init={lora.init}": ("--set lora.init=default", lora.init not in ("default", "gaussian")),
    }
    problems = [
        Problem(what=f"{setting} is for linear layers", hint=hint)
        for setting, (hint, is_set) in settings.items()
        if is_set
    ]
    if facts.expert_targets and problems:
        raise ModelError("adapters on a mixture's experts are plain LoRA without dropout", problems=problems)


def check_modules_to_save(config: RunConfig, model: Any, facts: ModelFacts) -> None:
    """ModelError for every module to save that the model does not have, or that takes layers which it cannot."""
    modules = config.lora.modules_to_save
    names = {name for name, _ in model.named_modules() if name}
    endings = sorted({name.rsplit(".", 1)[-1] for name in names})
    problems = [
        Problem(what=f"module {module!r} does not exist", hint=did_you_mean(module, endings))
        for module in modules
        if not any(name == module or name.endswith(f".{module}") for name in names)
    ]
    if problems:
        raise ModelError("lora.modules_to_save names no module", hint="loradock config show", problems=problems)
    linears = [layer.name for layer in facts.linears] if modules else []
    parents = {name: module for module in modules for name in linears if f".{module}." in f".{name}."}
    if config.model.storage.is_quantised and parents:
        what = f"lora.modules_to_save: {parents[min(parents)]} holds linear layers that are quantised"
        raise ModelError(
            f"{what} ({config.model.quantization}), and these cannot be trained whole",
            hint="--set model.quantization=none",
        )
    if parents and all(name in parents for name in facts.targets):
        what = f"lora.modules_to_save: {parents[facts.targets[0]]} holds every layer that lora.targets adapts"
        raise ModelError(f"{what}, and one that is trained whole gets no adapter", hint="--set lora.modules_to_save=[]")
