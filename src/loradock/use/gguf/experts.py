"""The tensors of a mixture by the names of its class in transformers, whatever layout its files have; those of experts
as one matrix an expert, gate and up apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError
from loradock.model import architecture, names, source
from loradock.use.gguf.rearranged import Changes, Take
from loradock.use.merge import tensors
from loradock.use.merge.tensors import Entry

if TYPE_CHECKING:
    import torch

    from loradock.model.source import BaseModel
    from loradock.use.gguf.mixtures import Mixture

OF_EXPERTS = re.compile(r"model\.layers\.(\d+)\..*\bexperts\.(gate_up_proj|up_proj|down_proj)(_bias)?")
CORRECTION = re.compile(r"model\.layers\.(\d+)\..*\.e_score_correction_bias")
"""What a router adds to its scores for the choice alone; ERNIE has it as a row."""
KINDS = {"gate_up_proj": ("gate", "up"), "up_proj": ("up",), "down_proj": ("down",)}
"""What a matrix of an expert holds, in the order of its rows."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a tensor in GGUF is made of. `name`: a class' name of it, or llama.cpp's, which begins with blk.

    `parts`: one tensor of the files, or the matrix of each expert; `take`: what of each, None for all as it is.
    """

    name: str
    parts: tuple[Entry, ...]
    take: Take | None = None
    is_of_experts: bool = False


def sources(base: BaseModel, mixture: Mixture) -> list[Source]:
    """All tensors of the language model. ModelError where the files lack one of them, or an expert's."""
    model = source.on_meta(base)
    plain = _plain_names(model)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items() if name in plain}
    entries = {entry.name: entry for file in base.weight_files for entry in tensors.entries(file)}
    changes = mixture.changes(base.config.get_text_config(decoder=True))
    sources: dict[str, list[Source]] = {}
    for key, name in names.in_model(model, entries).items():
        if name in plain:
            sources[name] = list(_of_one(plain[name], entries[key], mixture, changes))
    for name, by_part in _pieces(model, entries).items():
        if name in plain and (of_pieces := list(_of_pieces(plain[name], by_part, experts=shapes[name][0]))):
            sources[name] = of_pieces
    if missing := sorted(shapes.keys() - sources.keys()):
        others = f" and {len(missing) - 1} more" if missing[1:] else ""
        what = f"the files of {base.directory} lack {missing[0]}, or a part of it{others}"
        raise ModelError(what, hint="merge again: loradock merge")
    return [tensor for name in shapes for tensor in sources[name]]


def _pieces(model: Any, entries: Mapping[str, Entry]) -> dict[str, dict[int, dict[int, Entry]]]:
    """{weight of all experts: {which of the matrices in it: {expert: the tensor of the files}}}."""
    pieces: dict[str, dict[int, dict[int, Entry]]] = {}
    for key, piece in names.of_experts(model, entries).items():
        pieces.setdefault(piece.weight, {}).setdefault(piece.part, {})[piece.expert] = entries[key]
    return pieces


def _plain_names(model: Any) -> dict[str, str]:
    """{name in a model: name in the class of its language model alone}; a head that is tied is not named."""
    part, head = f"{architecture.decoder_name(model)}.", model.get_output_embeddings().weight
    once = dict(model.named_parameters()) | dict(model.named_buffers())
    plain = {name: f"model.{name.removeprefix(part)}" for name in once if name.startswith(part)}
    return plain | {name: "lm_head.weight" for name, value in once.items() if value is head and name not in plain}


def _changed(name: str, entry: Entry, changes: Changes) -> Iterator[Source]:
    """Those of a tensor that no expert has."""
    derived = next((of_ending for ending, of_ending in changes.items() if name.endswith(ending)), None)
    if derived is None:
        yield Source(name=name, parts=(entry,))
        return
    layer = name.removeprefix("model.layers.").partition(".")[0]
    for ending, take in derived:
        yield Source(name=f"blk.{layer}.{ending}" if ending else name, parts=(entry,), take=take)


def _of_one(name: str, entry: Entry, mixture: Mixture, changes: Changes) -> Iterator[Source]:
    """Those of a tensor that is one weight of the class; of all experts, where it is theirs."""
    if match := CORRECTION.fullmatch(name):
        yield Source(name=f"blk.{match[1]}.exp_probs_b.bias", parts=(entry,), take=lambda value: value.flatten())
        return
    match = OF_EXPERTS.fullmatch(name)
    if not match:
        yield from _changed(name, entry, changes)
        return
    layer, matrix, bias = match.groups()
    parts = tuple(_of_expert(entry, expert) for expert in range(entry.shape[0]))
    turn = mixture.is_transposed and not bias
    kinds = KINDS[matrix]
    for number, kind in enumerate(kinds):
        side = number if len(kinds) > 1 else None
        take = partial(_taken, side=side, is_interleaved=mixture.is_interleaved, is_transposed=turn)
        yield _of_layer(layer, kind, "bias" if bias else "weight", parts, take)


def _of_pieces(name: str, by_part: Mapping[int, Mapping[int, Entry]], *, experts: int) -> Iterator[Source]:
    """Those of a weight whose experts, and gate and up of each, are tensors of their own in the files; none where one
    of them is missing."""
    match = OF_EXPERTS.fullmatch(name)
    if not match:
        raise ModelError(f"{name} is of experts by a name that is not known here", hint="llama.cpp's converter")
    layer, matrix, _ = match.groups()
    kinds = KINDS[matrix]
    if len(by_part) < len(kinds) or any(len(by_expert) != experts for by_expert in by_part.values()):
        return
    for part, by_expert in sorted(by_part.items()):
        parts = tuple(by_expert[expert] for expert in range(experts))
        yield _of_layer(layer, kinds[part], "weight", parts, None)


def _of_layer(layer: str, kind: str, what: str, parts: tuple[Entry, ...], take: Take | None) -> Source:
    return Source(name=f"blk.{layer}.ffn_{kind}_exps.{what}", parts=parts, take=take, is_of_experts=True)


def _of_expert(entry: Entry, expert: int) -> Entry:
    """The bytes of one expert, as a tensor of its own."""
    size = entry.size // entry.shape[0]
    return replace(
        entry, name=f"{entry.name}[{expert}]", shape=entry.shape[1:], begin=entry.begin + expert * size, size=size
    )


def _taken(value: torch.Tensor, *, side: int | None, is_interleaved: bool, is_transposed: bool) -> torch.Tensor:
    """The whole matrix of an expert as [outputs, inputs], or its rows of gate or up."""
    value = value.t() if is_transposed else value
    if side is None:
        return value
    return value[side::2] if is_interleaved else value.chunk(2)[side]


def shape_of(each: Source) -> tuple[int, ...]:
    """Of the tensor that is made, experts first."""
    import torch

    first = torch.empty(each.parts[0].shape, device="meta")
    shape = tuple((each.take(first) if each.take else first).shape)
    return (len(each.parts), *shape) if each.is_of_experts else shape


def read(each: Source) -> Iterator[torch.Tensor]:
    """What is taken of one part after the other."""
    for part in each.parts:
        value: Any = tensors.read(part)
        yield each.take(value) if each.take else value
