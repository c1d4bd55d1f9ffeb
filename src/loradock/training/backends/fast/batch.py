"""The tensors of a micro-batch: one flat row of tokens, and where its supervised or its pooled ones are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch

from loradock.data.collate import MicroBatch
from loradock.training.backends.fast.attention.base import Documents
from loradock.training.backends.fast.carried import Carried
from loradock.training.backends.fast.keys import token_keys
from loradock.training.objectives.pooling import Pooling, flat


def nothing() -> torch.Tensor:
    """int64 [0]."""
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """T tokens of whole documents laid end to end: `ids` int64 [T], `positions` int32 [T] (from 0 in each document).

    `keys` int64 [T] are what the masks of dropout follow from (see `token_keys`); [0]: nothing is dropped. `real` bool
    [T]: the tokens of documents, [0] where nothing but these is there or it makes no difference. Where
    documents share a prompt, its tokens are computed once: `documents` are of D tokens, more than T, `unfold` int64 [D]
    is the token in each of their places, `fold` int64 [T] the first place of each token, and `again` int64 [D - T] the
    places of tokens in an earlier one; all three [0] where nothing is shared. `carried`: of the pass over them.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    documents: Documents
    keys: torch.Tensor = field(default_factory=nothing)
    real: torch.Tensor = field(default_factory=nothing)
    unfold: torch.Tensor = field(default_factory=nothing)
    fold: torch.Tensor = field(default_factory=nothing)
    again: torch.Tensor = field(default_factory=nothing)
    carried: Carried = field(default_factory=Carried)

    @property
    def tokens(self) -> int:
        """Tokens, padding included."""
        return self.ids.numel()

    def tensors(self) -> dict[str, Any]:
        """Its own tensors by name, without those of the documents."""
        return {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("documents", "carried")
        }

    def uses(self) -> torch.Tensor:
        """How often each token stands in a document that is learned from, [T]."""
        return self.real if self.real.numel() else torch.ones_like(self.ids)

    def __reduce__(self) -> Any:
        """By value: each tensor that another process sends takes a file descriptor, and a step has hundreds."""
        arrays = {name: tensor.numpy() for name, tensor in self.tensors().items()}
        documents = self.documents
        given = (documents.bounds, documents.cu_seqlens.numpy(), documents.longest, documents.is_causal)
        return _from_arrays, (type(self), arrays, *given)

    def to(self, device: torch.device) -> Self:
        """The batch on a device, copied without waiting where it lies in pinned memory."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def masked_by(self, salt: int | None) -> Self:
        """With the dropout of a step, whose number `salt` is (signed 64 bits); None: without dropout."""
        if not self.keys.numel():
            return self
        return replace(self, keys=self.keys[:0] if salt is None else self.keys + salt)

    def pin_memory(self) -> Self:
        """The batch in pinned memory; the data loader calls it."""
        return self._each(torch.Tensor.pin_memory)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        return type(self)(**changed, documents=replace(self.documents, cu_seqlens=change(self.documents.cu_seqlens)))


def _from_arrays(
    kind: type[Any], arrays: dict[str, Any], bounds: tuple[int, ...], cu_seqlens: Any, longest: int, is_causal: bool
) -> Any:
    documents = Documents(bounds=bounds, cu_seqlens=torch.from_numpy(cu_seqlens), longest=longest, is_causal=is_causal)
    return kind(**{name: torch.from_numpy(array) for name, array in arrays.items()}, documents=documents)


@dataclass(frozen=True, kw_only=True, eq=False)
class PooledBatch(Tokens):
    """Documents to embed; `pooling` float32 [documents, T] says how much each token counts in each vector."""

    pooling: torch.Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class FlatBatch(Tokens):
    """M positions whose next token is supervised: `rows` int64 [M], `targets` int64 [M], `weights` float32 [M] 1.

    Entries that only fill a static shape have weight 0 and `slots` int64 [M] of T, a spare row (else `slots` is
    `rows`), so that nothing is written twice. Where prompts are shared, the last token of one predicts the first of
    several answers: `places` int64 [M] are the positions in the documents ([0]: `rows` are), and `repeats` int64 [R]
    the entries whose row an earlier one has; their slot is spare, too.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    places: torch.Tensor = field(default_factory=nothing)
    repeats: torch.Tensor = field(default_factory=nothing)

    @property
    def owners(self) -> torch.Tensor:
        """int64 [M]: the document of each position."""
        places = self.places if self.places.numel() else self.rows
        return torch.bucketize(places, self.documents.cu_seqlens[1:].long(), right=True)

    def uses(self) -> torch.Tensor:
        """Of the documents with a supervised token."""
        lengths = self.documents.cu_seqlens.diff()
        supervised = torch.zeros(len(lengths), device=self.ids.device).index_add_(0, self.owners, self.weights)
        size = self.documents.bounds[-1]
        of_places = (supervised > 0).long().repeat_interleave(lengths, output_size=size)
        if not self.unfold.numel():
            return of_places
        return torch.zeros_like(self.ids).index_add_(0, self.unfold, of_places)


def flatten(
    micro_batch: MicroBatch,
    *,
    pad_token_id: int,
    longest: int,
    multiple: int = 1,
    documents_multiple: int = 1,
    has_dropout: bool = False,
    has_experts: bool = False,
) -> FlatBatch:
    """Lay the rows of a micro-batch end to end, filled up to a multiple of `multiple` tokens and positions.

    `longest` bounds the length of a document; what fills up is cut into documents of at most that length. On the device
    empty documents fill their number up to a multiple of `documents_multiple`.
    """
    shape: dict[str, Any] = {"longest": longest, "multiple": multiple, "more": documents_multiple}
    shape |= {"has_dropout": has_dropout, "has_experts": has_experts}
    shared = common_lengths(micro_batch) if micro_batch.shares_prompts else None
    laid = laid_out(micro_batch, pad_token_id, **shape, saved=0 if shared is None else int(shared.sum()))
    bounds, ids = np.array(laid.documents.bounds), laid.ids.numpy()
    is_learned = np.zeros(len(ids) + 1, dtype=np.bool_)
    if not micro_batch.is_idle:
        is_learned[: micro_batch.lengths.sum()] = np.concatenate([mask for _, mask in micro_batch.samples()])
    is_learned[bounds[:-1]] = False  # the first token of a document follows from nothing in it
    learned = np.flatnonzero(is_learned).astype(np.int64) - 1
    filling = np.zeros(max(multiple, rounded_up(len(learned), multiple)) - len(learned), dtype=np.int64)
    places = np.concatenate([learned, filling])
    targets = np.concatenate([ids[learned + 1], filling])
    weights = (np.arange(len(places)) < len(learned)).astype(np.float32)
    rows, repeats = places, np.zeros(0, dtype=np.int64)
    if shared is not None:
        laid = folded(laid, micro_batch.lengths.astype(np.int64), shared)
        rows = laid.unfold.numpy()[places]
        _, first = np.unique(rows[: len(learned)], return_index=True)
        repeats = np.setdiff1d(np.arange(len(learned)), first)
    slots = np.where(weights > 0, rows, laid.tokens)
    slots[repeats] = laid.tokens
    return FlatBatch(
        ids=laid.ids,
        positions=laid.positions,
        documents=laid.documents,
        keys=laid.keys,
        real=laid.real,
        unfold=laid.unfold,
        fold=laid.fold,
        again=laid.again,
        rows=torch.from_numpy(rows),
        slots=torch.from_numpy(slots),
        targets=torch.from_numpy(targets),
        weights=torch.from_numpy(weights),
        places=nothing() if shared is None else torch.from_numpy(places),
        repeats=torch.from_numpy(repeats),
    )


def common_lengths(micro_batch: MicroBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 [documents / 2]: how many tokens both documents of a pair begin with that are equal and not learned."""
    samples = list(micro_batch.samples())
    sizes: list[int] = []
    for (ids, mask), (other_ids, other_mask) in zip(samples[0::2], samples[1::2], strict=True):
        size = min(len(ids), len(other_ids))
        differs = (ids[:size] != other_ids[:size]) | mask[:size] | other_mask[:size]
        sizes.append(int(differs.argmax()) if differs.any() else size)
    return np.array(sizes, dtype=np.int64)


def folded(laid: Tokens, lengths: np.ndarray[Any, Any], shared: np.ndarray[Any, Any]) -> Tokens:
    """The same documents, the tokens that pairs of them share laid once: the prompt, one answer, the other answer.

    `lengths` int64 [documents] are theirs without what fills up, `shared` [documents / 2] as `common_lengths` has it.
    """
    starts = np.cumsum(lengths) - lengths
    again = np.concatenate(
        [np.arange(start, start + size) for start, size in zip(starts[1::2].tolist(), shared.tolist(), strict=True)]
    ).astype(np.int64)
    is_first = np.ones(laid.ids.numel(), dtype=np.bool_)
    is_first[again] = False
    unfold = np.cumsum(is_first) - 1
    first_copies = np.concatenate(
        [np.arange(start, start + size) for start, size in zip(starts[0::2].tolist(), shared.tolist(), strict=True)]
    ).astype(np.int64)
    unfold[again] = unfold[first_copies]
    fold = torch.from_numpy(np.flatnonzero(is_first))
    return replace(
        laid,
        ids=laid.ids[fold],
        positions=laid.positions[fold],
        keys=laid.keys[fold] if laid.keys.numel() else laid.keys,
        real=laid.real[fold] if laid.real.numel() else laid.real,
        unfold=torch.from_numpy(unfold),
        fold=fold,
        again=torch.from_numpy(again),
    )


def flatten_pooled(
    micro_batch: MicroBatch,
    *,
    pooling: Pooling,
    pools_all: bool,
    is_causal: bool,
    pad_token_id: int,
    longest: int,
    multiple: int = 1,
    has_dropout: bool = False,
    has_experts: bool = False,
) -> PooledBatch:
    """Lay documents to embed end to end, filled up to a multiple of `multiple` tokens, which count in no vector.

    `pools_all`: the instruction before a text counts, too.
    """
    shape: dict[str, Any] = {"longest": longest, "multiple": multiple, "is_causal": is_causal}
    shape |= {"has_dropout": has_dropout, "has_experts": has_experts}
    laid = laid_out(micro_batch, pad_token_id, **shape)
    masks = torch.from_numpy(np.concatenate([mask for _, mask in micro_batch.samples()])) | pools_all
    weights = flat(masks, torch.from_numpy(micro_batch.lengths), pooling=pooling)
    return PooledBatch(
        ids=laid.ids,
        positions=laid.positions,
        documents=laid.documents,
        keys=laid.keys,
        real=laid.real,
        pooling=torch.nn.functional.pad(weights, (0, laid.tokens - weights.shape[1])),
    )


def laid_out(
    micro_batch: MicroBatch,
    pad_token_id: int,
    *,
    longest: int,
    multiple: int,
    more: int = 1,
    is_causal: bool = True,
    has_dropout: bool = False,
    has_experts: bool = False,
    saved: int = 0,
) -> Tokens:
    """The rows end to end, with what fills up; see `flatten`. `more`: that of the number of documents.

    `saved` tokens will be laid once where they are twice: without them the multiple is reached.
    """
    rows = [ids for ids, _ in micro_batch.samples()]
    used = sum(lengths := [len(ids) for ids in rows])
    total = rounded_up(used - saved, multiple) + saved
    lengths += [min(longest, total - start) for start in range(used, total, longest)]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    empty = np.full(rounded_up(len(lengths), more) - len(lengths), total, dtype=np.int32)
    ids = np.concatenate([*rows, np.full(total - used, pad_token_id)]).astype(np.int64)
    positions = np.arange(total, dtype=np.int32) - np.repeat(bounds[:-1], np.diff(bounds))
    return Tokens(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions.astype(np.int32)),
        documents=Documents(
            bounds=tuple(int(bound) for bound in bounds),
            cu_seqlens=torch.from_numpy(np.concatenate([bounds, empty])),
            longest=longest if more > 1 else max(lengths),  # what is replayed keeps the bound that it was captured with
            is_causal=is_causal,
        ),
        keys=torch.from_numpy(token_keys(micro_batch, slots=total) if has_dropout else np.empty(0, dtype=np.int64)),
        real=torch.arange(total) < used if has_experts and total > used else nothing(),
    )


def rounded_up(count: int, multiple: int) -> int:
    """The next multiple."""
    return -(-count // multiple) * multiple
