"""What becomes of each tensor of a base: copied, dequantised, merged or replaced; decided from headers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loradock.config.sections.model import ModelConfig
from loradock.errors import ModelError
from loradock.model import names, prequantised, reward_head, whole
from loradock.model.experts import layout
from loradock.model.source import BaseModel
from loradock.use.merge import tensors
from loradock.use.merge.adapted import Adapted, adapted, empty, quantised_weights
from loradock.use.merge.experts import Place
from loradock.use.merge.tensors import Entry, Slot

if TYPE_CHECKING:
    import torch

Kind = Literal["copy", "cast", "dequantise", "merge", "replace"]
Onto = Literal["trained", "original"]
START_BYTES = 1 << 29
BYTES_OF_TARGET = 16
FILE_BYTES = 32 << 20
"""Tokenizer, configuration and headers, and what a file system rounds up."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One tensor of the result. `name`: in the files, `weight`: in the model; `entry`: where its base lies.

    `is_quantised`: the base values are NF4's. `source`: the adapter's tensor that stands in the place of the base's;
    where the kind is merge, LoRA or trained rows are put on it. `place`: of a tensor of experts, where it lies in their
    weight.
    """

    kind: Kind
    name: str
    weight: str
    entry: Entry
    dtype: str
    shape: tuple[int, ...]
    is_quantised: bool = False
    is_transposed: bool = False
    source: str | None = None
    place: Place | None = None

    @property
    def slot(self) -> Slot:
        """Where it will lie."""
        count = 1
        for size in self.shape:
            count *= size
        return Slot(name=self.name, dtype=self.dtype, shape=self.shape, size=count * tensors.width(self.dtype))


@dataclass(frozen=True, kw_only=True)
class MergePlan:
    """Steps by the name of the file that will hold them, in the layout of the base's files.

    `load_dtype`: that in which the base was loaded in training; `device` (cpu or cuda) quantises.
    `is_untied`: head and embedding are two tensors now. `left_out`: tensors of the base that a reward model has not.
    """

    base: BaseModel
    adapter: Path
    onto: Onto
    asked: ModelConfig
    load_dtype: torch.dtype
    device: str
    adapted: Adapted
    shards: Mapping[str, tuple[Step, ...]]
    is_untied: bool
    vocabulary: int
    left_out: frozenset[str] = frozenset()

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them."""
        return tuple(step for steps in self.shards.values() for step in steps)

    @property
    def disk_bytes(self) -> int:
        """What the result takes."""
        return sum(step.slot.size for step in self.steps) + FILE_BYTES

    @property
    def memory_bytes(self) -> int:
        """At most this much beyond what the process has at its start."""
        computed = [step.entry.count for step in self.steps if step.kind != "copy"]
        return START_BYTES + BYTES_OF_TARGET * max(computed, default=0)

    def count(self, kind: Kind) -> int:
        """Tensors that this happens to."""
        return sum(step.kind == kind for step in self.steps)


def make(
    base: BaseModel,
    adapter: Path,
    *,
    asked: ModelConfig,
    load_dtype: torch.dtype,
    onto: Onto,
    dtype: str | None,
    device: str = "cpu",
) -> MergePlan:
    """The plan. `asked`: how training loaded the base; `dtype`: safetensors' name of the result's, None as the base's.

    Raises what `whole.check` and `adapted` raise, and ModelError where a weight that is to change is not in the base's
    files.
    """
    whole.check(base)
    adapted_base = adapted(base, adapter)
    prequantised.check(base.config, base.weight_files, asked, directory=base.directory)
    is_quantised_here = onto == "trained" and asked.storage.is_dequantised and not prequantised.is_nf4(base.config)
    quantised = quantised_weights(base, asked, load_dtype) if is_quantised_here else {}
    files = tensors.of_base(base)
    entry_of = {entry.name: entry for entries in files.values() for entry in entries}
    model = empty(base)
    weight_of = {name: name for name in entry_of} | names.in_model(model, entry_of)
    left_out = frozenset(
        name for name, weight in weight_of.items() if weight.startswith(tuple(adapted_base.replaced) or ("\0",))
    )
    files = {name: tuple(e for e in entries if e.name not in left_out) for name, entries in files.items()}
    pieces = names.of_experts(model, entry_of)
    weight_of |= {name: piece.weight for name, piece in pieces.items()}
    fused = {matrices.name for matrices in layout.matrices(model)}
    places = {name: Place() for name, weight in weight_of.items() if weight in fused} | _places(pieces, entry_of)
    weights_present = {*weight_of.values(), *([reward_head.WEIGHT] if adapted_base.is_reward else [])}
    _refuse_absent(
        base,
        wanted={*adapted_base.deltas, *adapted_base.whole, *adapted_base.rows, *quantised},
        there=weights_present,
        found=adapted_base,
    )
    shards = {
        name: tuple(
            replace(step, place=places.get(entry.name))
            for entry in entries
            for step in _steps(
                entry, weight_of[entry.name], adapted_base, quantised, dtype=dtype, there=weights_present
            )
        )
        for name, entries in files.items()
    }
    if adapted_base.is_reward:
        last = max(shards)
        shards[last] = (*shards[last], _head(adapted_base, dtype=dtype))
    steps = [step for shard in shards.values() for step in shard]
    refuse_unused(adapter, steps, adapted_base)
    vocabulary = next(
        (step.shape[0] for step in steps if step.weight in adapted_base.tied_to(adapted_base.embedding)), 0
    )
    return MergePlan(
        base=base,
        adapter=adapter,
        onto=onto,
        asked=asked,
        load_dtype=load_dtype,
        device=device,
        adapted=adapted_base,
        shards=shards,
        is_untied=any(step.name not in weight_of and step.weight != reward_head.WEIGHT for step in steps),
        vocabulary=vocabulary,
        left_out=left_out,
    )


def _head(adapted_base: Adapted, *, dtype: str | None) -> Step:
    """The head of a reward model, which no file of the base has: as it was trained unless a dtype is asked for."""
    source = adapted_base.whole[reward_head.WEIGHT]
    entry = adapted_base.files[source]
    return Step(
        kind="replace",
        name=reward_head.WEIGHT,
        weight=reward_head.WEIGHT,
        entry=entry,
        dtype=dtype or entry.dtype,
        shape=entry.shape,
        source=source,
    )


def _places(pieces: Mapping[str, names.Piece], entry_of: Mapping[str, Entry]) -> dict[str, Place]:
    """Where each piece lies, with the others of its expert."""
    parts: dict[tuple[str, int], dict[int, Entry]] = {}
    for name, piece in pieces.items():
        parts.setdefault((piece.weight, piece.expert), {})[piece.part] = entry_of[name]
    return {
        name: Place(
            expert=piece.expert,
            part=piece.part,
            parts=tuple(entry for _, entry in sorted(parts[piece.weight, piece.expert].items())),
        )
        for name, piece in pieces.items()
    }


def _steps(
    entry: Entry,
    weight: str,
    adapted_base: Adapted,
    quantised: Mapping[str, bool],
    *,
    dtype: str | None,
    there: set[str],
) -> list[Step]:
    """What comes of one tensor: itself, and the tensors that were tied to it and are their own now."""
    group = adapted_base.tied_to(weight)
    name_of = {weight: entry.name}
    if len({_change(name, adapted_base) for name in group}) > 1:
        name_of |= {name: name for name in sorted(group - there)}
    steps: list[Step] = []
    for name_pair, name in name_of.items():
        source = adapted_base.whole.get(name_pair)
        is_quantised = name_pair in quantised and source is None
        kind, code = _kind(name_pair, entry, adapted_base, is_quantised=is_quantised, dtype=dtype)
        steps.append(
            Step(
                kind=kind,
                name=name,
                weight=name_pair,
                entry=entry,
                dtype=code,
                shape=_shape(name_pair, entry, adapted_base),
                is_quantised=is_quantised,
                is_transposed=quantised.get(name_pair, False),
                source=source,
            )
        )
    return steps


def _shape(weight: str, entry: Entry, adapted_base: Adapted) -> tuple[int, ...]:
    """That of the result: with trained rows the embedding may have more rows than the base's."""
    if source := adapted_base.whole.get(weight):
        return adapted_base.files[source].shape
    return adapted_base.names[weight] if weight in adapted_base.rows else entry.shape


def _change(weight: str, adapted_base: Adapted) -> str:
    """What tells the values of tied names apart: equal texts, equal values."""
    key, rows = adapted_base.whole.get(weight), adapted_base.rows.get(weight)
    changes = [tensors.digest(adapted_base.files[key])] if key else []
    changes += [weight] if weight in adapted_base.deltas else []
    changes += [f"{rows.key} {rows.places}"] if rows else []
    return " ".join(changes)


def _kind(
    weight: str, entry: Entry, adapted_base: Adapted, *, is_quantised: bool, dtype: str | None
) -> tuple[Kind, str]:
    code = dtype if dtype and entry.dtype in tensors.FLOATING else entry.dtype
    is_merged = weight in adapted_base.deltas or weight in adapted_base.rows
    if (is_merged or is_quantised) and entry.dtype not in tensors.FLOATING:
        raise ModelError(f"{entry.name} is {entry.dtype}: not a base in 16 or 32 bits", hint="give the original model")
    if is_merged:
        return "merge", code
    if weight in adapted_base.whole:
        return "replace", code
    if is_quantised or entry.parts:
        return "dequantise", code
    return ("copy" if code == entry.dtype else "cast"), code


def _refuse_absent(base: BaseModel, *, wanted: set[str], there: set[str], found: Adapted) -> None:
    absent = sorted(name for name in wanted if not there & found.tied_to(name))
    if absent:
        raise ModelError(
            f"{base.directory} has no tensor {absent[0]} ({len(absent)} are missing): its files name or fuse weights "
            "differently from the model",
            hint="save the base again: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)",
        )


def refuse_unused(adapter: Path, steps: Sequence[Step], adapted_base: Adapted) -> None:
    """ModelError where the adapter changes a weight, and no step would write that change."""
    written = {step.weight for step in steps if step.kind in ("merge", "replace")}
    changed = sorted({*adapted_base.deltas, *adapted_base.whole, *adapted_base.rows})
    unused = [
        weight
        for weight in changed
        if not any(
            _change(name, adapted_base) == _change(weight, adapted_base)
            for name in written & adapted_base.tied_to(weight)
        )
    ]
    if unused:
        raise ModelError(
            f"{len(unused)} weights that {adapter} changes would stay as they are, first {unused[0]}",
            hint="serve the adapter beside its base instead; please report the model",
        )
