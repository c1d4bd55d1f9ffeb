"""ModelFacts from a config alone: the model is built on the meta device, so it takes no memory and no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from loradock.catalog import storages
from loradock.catalog.storages import NF4
from loradock.config.schema import RunConfig
from loradock.config.sections.model import LoraConfig, names_experts, names_layer
from loradock.errors import ModelError, Problem
from loradock.facts import UNREACHABLE_SHARE, ExpertShape, LinearShape, ModelFacts
from loradock.model import architecture, lengths, made_dense, names, prequantised, recurrence, source
from loradock.model.experts import layout, peft_layers
from loradock.model.opening import Opening
from loradock.text.suggest import did_you_mean

if TYPE_CHECKING:
    from loradock.model.source import BaseModel

Shape = TypeVar("Shape", LinearShape, ExpertShape)


def inspect(base: BaseModel, config: RunConfig) -> ModelFacts:
    """Count layers and weights, resolve LoRA's targets, and refuse what quantisation or LoRA could not reach."""
    model = source.on_meta(base)
    storage = config.model.storage
    beyond = unreachable(model, has_experts=storage.takes_experts)
    linears = tuple(with_rank(layer, config.lora) for layer in linear_shapes(model))
    dense = held_dense(base, config, model, linears)
    experts = tuple(with_rank(matrix, config.lora) for matrix in expert_shapes(model) if storage.takes_experts)
    text = base.config.get_text_config(decoder=True)
    added = Opening.of(config).parameters(config, base, model)
    targets = resolve_targets(config.lora.targets, linears, model)
    facts = ModelFacts(
        **asdict(lengths.positions_of(base, config)),
        architecture=type(model).__name__,
        decoder=type(model.get_decoder()).__name__,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        linears=linears,
        targets=targets.linears,
        experts=experts,
        expert_targets=targets.experts,
        expert_names=targets.taken_for_experts,
        unreachable_parameters=sum(beyond.values()),
        unreachable_kinds=tuple(sorted(beyond, key=lambda kind: (-beyond[kind], kind))),
        weights_bytes=sum(file.stat().st_size for file in base.weight_files),
        has_sdpa=bool(getattr(model, "_supports_sdpa", True)),
        capped_heads=capped_heads(text),
        peculiarity=peculiarity(text),
        left_out=architecture.left_out(model),
        recurrence=recurrence.of(model, text),
        is_prequantised=bool(prequantised.settings(base.config)),
        stored_as=stored.title if (stored := made_dense.format_of(base.config)) else None,
        dense_parameters=dense,
        **added,
    )
    recurrence.check_read_past(facts, model, quantization=config.model.quantization)
    check_coverage(facts, quantization=config.model.quantization)
    check_modules_to_save(config, model, facts)
    check_patterns(config.lora, facts)
    check_rank(config.lora, facts)
    check_experts(config.lora, facts)
    return facts


def held_dense(base: BaseModel, config: RunConfig, model: Any, linears: Sequence[LinearShape]) -> int:
    """Weights of linear layers in 16 bit in the files of a base in NF4. ModelError for a base that is not opened."""
    from transformers.pytorch_utils import Conv1D

    packed = prequantised.check(base.config, base.weight_files, config.model, directory=base.directory)
    if not prequantised.is_nf4(base.config):
        return 0
    if any(True for _ in layout.modules(model)) or any(isinstance(module, Conv1D) for module in model.modules()):
        kind = "a mixture of experts" if any(True for _ in layout.modules(model)) else "a model of Conv1D layers"
        raise ModelError(f"{base.directory} is {kind} in NF4, which is not opened", hint=prequantised.ORIGINAL)
    in_model = set(packed) | set(names.in_model(model, packed).values())
    return sum(layer.rows * layer.columns for layer in linears if packed and f"{layer.name}.weight" not in in_model)


def capped_heads(config: Any) -> int:
    """Query heads of a layer of a text model whose attention is soft-capped; 0 where it is not."""
    return config.num_attention_heads if getattr(config, "attn_logit_softcapping", None) else 0


def peculiarity(config: Any) -> str | None:
    """What a text model's config asks for that few do: random drops, a look ahead, angles that depend on the input."""
    for name in ("attention_dropout", "resid_pdrop", "embd_pdrop"):
        if share := getattr(config, name, None):
            return f"the model has {name} {share}"
    if getattr(config, "use_bidirectional_attention", False):
        return "the model's attention is not causal"
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    types = {str(kind.get("rope_type")) for kind in kinds}
    if any("dynamic" in kind for kind in types):
        return "the model's rotary embedding depends on the length of the input"
    return None


def linear_shapes(model: Any) -> tuple[LinearShape, ...]:
    """Every linear layer but the output head, in the model's order."""
    import torch
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    return tuple(
        LinearShape(name=name, rows=module.weight.shape[0], columns=module.weight.shape[1])
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not head
    )


def expert_shapes(model: Any) -> tuple[ExpertShape, ...]:
    """Every matrix of fused experts that transformers' interface computes, in the model's order."""
    return tuple(
        ExpertShape(
            name=matrices.name,
            count=matrices.experts,
            active=layout.used_by_a_token(model, matrices),
            rows=matrices.outputs,
            columns=matrices.inputs,
        )
        for matrices in layout.matrices(model)
    )


def unreachable(model: Any, *, has_experts: bool = False) -> dict[str, int]:
    """{kind: weights} of matrices that are neither linear nor embedding, as fused experts are.

    A kind is the end of the names: module and parameter (`experts.gate_up_proj`). `has_experts`: the experts that
    `model.experts` computes are reached.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    reached = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding, Conv1D))
    }
    reached |= {id(bias) for bias in layout.biases(model)}
    if has_experts:
        reached |= {id(matrices.parameter) for matrices in layout.matrices(model)}
    parameters_of: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if is_matrix(parameter) and id(parameter) not in reached:
            kind = ".".join(name.split(".")[-2:])
            parameters_of[kind] = parameters_of.get(kind, 0) + parameter.numel()
    return parameters_of


def is_matrix(parameter: Any) -> bool:
    """Whether a parameter maps a vector to another: norms do not, nor a convolution that takes each channel alone."""
    return parameter.dim() >= 2 and parameter.shape[1] > 1


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


def check_coverage(facts: ModelFacts, *, quantization: str) -> None:
    """Refuse a model of which quantisation would silently leave more than 1 % of the inner weights in 16 bit."""
    if not storages.of(quantization).is_quantised or facts.unreachable_share <= UNREACHABLE_SHARE:
        return
    is_of_experts = "expert" in facts.unreachable_words
    takes_experts = storages.of(quantization).takes_experts
    own = ", which its class does not compute by transformers' interface for experts" if takes_experts else ""
    raise ModelError(
        f"{quantization} would cover only {1 - facts.unreachable_share:.0%} of {facts.architecture}'s inner weights: "
        f"{facts.unreachable_parameters:,} are outside linear layers ({facts.unreachable_words})"
        f"{own if is_of_experts else ''}",
        hint=f"--set model.quantization={NF4.name}, which takes the experts of most mixtures"
        if is_of_experts and not takes_experts
        else "--set model.quantization=none, if the GPU has the memory",
    )


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
    linears = [layer.name for layer in linear_shapes(model)] if modules else []
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
