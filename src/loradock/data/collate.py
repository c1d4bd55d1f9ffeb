"""MicroBatch: the documents of one forward pass, and the tensors they become; Batch: those of a step, of one kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from loradock.catalog.objectives.base import Pass
from loradock.data.prepared import Prepared

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
IDLE = -1
"""The place of each document that a rank without work of its own runs along."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class MicroBatch:
    """Documents of one forward pass of one rank: `rows` and `places` int64, `starts` and `lengths` int32, one each.

    A document is `lengths` tokens of a row from token `starts`: a whole row, or a window of one that is longer, whose
    first `contexts` tokens (int32; None: one) are context and not learned. Its place is that among the documents of its
    kind in the step, over all ranks.
    `supervised_tokens` counts its labels that are not ignored. `is_idle`: a rank without work in this step runs it so
    that every rank takes part in the gradient exchange; all of its labels are ignored. `purpose` is the pass that it is
    for: of documents to embed the mask says which tokens are text, behind their instruction. `shares_prompts`: two
    documents each, one after the other, begin with a prompt that an engine may compute once.
    """

    prepared: Prepared
    rows: Array
    places: Array
    starts: Array
    lengths: Array
    supervised_tokens: int
    is_packed: bool
    is_idle: bool = False
    purpose: Pass = "likelihood"
    shares_prompts: bool = False
    contexts: Array | None = None

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return int(self.lengths.sum(dtype=np.int64))

    def samples(self) -> Iterator[tuple[Array, Array]]:
        """Token ids (int32) and mask (bool) of each sample: [tokens] each."""
        contexts = np.ones_like(self.rows) if self.contexts is None else self.contexts
        columns = (self.rows, self.starts, self.lengths, contexts)
        for row, start, length, context in zip(*(column.tolist() for column in columns), strict=True):
            yield self.prepared.row(row, start=start, length=length, context=context)


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """What a step, or one turn of an evaluation, takes of one kind of samples.

    `micro_batches` are those of this rank; `samples`, `tokens`, `supervised_tokens` and `row_ids` (int64 [samples], in
    order) are those of all ranks. Where a loss holds documents against one another, `documents` counts them over all
    ranks, and `relations` are arrays by name which say what is held against what; see the kind of samples
    (`data.samples`). `set_index`: of an evaluation over several sets, which one this is of.
    """

    micro_batches: tuple[MicroBatch, ...]
    samples: int
    tokens: int
    supervised_tokens: int
    row_ids: Array
    documents: int = 0
    set_index: int = 0
    relations: Mapping[str, Array] = field(default_factory=dict[str, Array])


def collate(micro_batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int = 1) -> dict[str, Tensor]:
    """The model's inputs, int64.

    Unpacked: input_ids, attention_mask, labels, [samples, longest]. Packed: input_ids, labels, position_ids,
    [1, tokens], and seq_lengths [samples]; positions begin at 0 in each document, whose first label is ignored, since
    the model would predict it from the document before. Padding to a multiple goes to the right: unpacked with mask
    0, packed as one more document with positions of its own, which seq_lengths counts too.
    """
    if micro_batch.is_packed:
        return _packed(micro_batch, pad_token_id=pad_token_id, pad_to_multiple=pad_to_multiple)
    return _padded(micro_batch, pad_token_id=pad_token_id, pad_to_multiple=pad_to_multiple)


def _labels(micro_batch: MicroBatch, *, ids: Array, mask: Array) -> Array:
    return np.where(mask & (not micro_batch.is_idle), ids, IGNORED)


def _padded(micro_batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int) -> dict[str, Tensor]:
    import torch

    shape = (len(micro_batch.rows), _rounded_up(int(micro_batch.lengths.max()), pad_to_multiple))
    input_ids = np.full(shape, pad_token_id, dtype=np.int64)
    attention_mask = np.zeros(shape, dtype=np.int64)
    labels = np.full(shape, IGNORED, dtype=np.int64)
    for index, (ids, mask) in enumerate(micro_batch.samples()):
        input_ids[index, : len(ids)] = ids
        attention_mask[index, : len(ids)] = 1
        labels[index, : len(ids)] = _labels(micro_batch, ids=ids, mask=mask)
    arrays = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _packed(micro_batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int) -> dict[str, Tensor]:
    import torch

    total = _rounded_up(micro_batch.tokens, pad_to_multiple)
    input_ids = np.full((1, total), pad_token_id, dtype=np.int64)
    labels = np.full((1, total), IGNORED, dtype=np.int64)
    position_ids = np.zeros((1, total), dtype=np.int64)
    start = 0
    for ids, mask in micro_batch.samples():
        stop = start + len(ids)
        input_ids[0, start:stop] = ids
        labels[0, start:stop] = _labels(micro_batch, ids=ids, mask=mask)
        labels[0, start] = IGNORED
        position_ids[0, start:stop] = np.arange(len(ids))
        start = stop
    position_ids[0, start:] = np.arange(total - start)
    seq_lengths = [*micro_batch.lengths.tolist(), *([total - start] if total > start else [])]
    arrays = {"input_ids": input_ids, "labels": labels, "position_ids": position_ids}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {**tensors, "seq_lengths": torch.tensor(seq_lengths, dtype=torch.int64)}


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
