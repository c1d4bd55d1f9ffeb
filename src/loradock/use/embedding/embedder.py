"""Embedder: texts to vectors, exactly as a run trained them: its template, tokens, attention and pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch

from loradock.data.formats.base import Side
from loradock.data.formats.fields import RowError
from loradock.data.pairs.preparer import Document, Documents
from loradock.errors import DataError, ModelError, OutOfMemory
from loradock.training.objectives.pooling import padded, pooled
from loradock.training.recipe import Recipe
from loradock.use.inference.decoding import batches

Float32 = np.ndarray[Any, np.dtype[np.float32]]
Kind = Literal["query", "passage"]
Progress = Callable[[int], None]
BATCH_TOKENS = 16_384
"""Tokens of a forward pass, padding included: enough to fill a GPU, and 0.3 GB of states for a model of 7B."""
WINDOW_ROWS = 8_192
"""Texts that are tokens at once, and sorted by length together."""


class Embedder:
    """A frozen model that embeds by a recipe. `has_adapter`: it is a PeftModel, whose base can be asked alone."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        recipe: Recipe,
        *,
        dtype: torch.dtype = torch.float32,
        has_adapter: bool,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self.model, self.recipe = model.eval(), recipe
        self.has_adapter = has_adapter
        self._batch_tokens, self._dtype = batch_tokens, dtype
        self._documents = Documents(recipe.task(tokenizer))
        self._limits: dict[Kind, int] = {"query": recipe.query_length, "passage": recipe.passage_length}
        self._padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return int(self.model.config.get_text_config().hidden_size)

    def document(self, text: str, *, instruction: str = "", kind: Kind = "passage") -> Document:
        """The tokens of a text; RowError where the instruction leaves no space for it."""
        return self._documents(Side(instruction, text), limit=self._limits[kind])

    def embed(
        self, texts: Sequence[str], *, instruction: str = "", kind: Kind = "passage", progress: Progress | None = None
    ) -> Float32:
        """See `vectors`, of texts that all have one instruction. DataError where it is too long."""
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        for start in range(0, len(texts), WINDOW_ROWS):
            window = texts[start : start + WINDOW_ROWS]
            try:
                documents = [self.document(text, instruction=instruction, kind=kind) for text in window]
            except RowError as error:
                raise DataError(str(error), hint="a shorter --instruction") from error
            counted = None if progress is None else (lambda count, start=start: progress(start + count))
            vectors[start : start + WINDOW_ROWS] = self.vectors(documents, progress=counted)
        return vectors

    def vectors(
        self, documents: Sequence[Document], *, is_unit: bool = True, progress: Progress | None = None
    ) -> Float32:
        """Float32 [documents, width], in their order; `is_unit`: of length 1, as cosine similarity was trained.

        What stands in a batch with a document changes its vector by no more than rounding. `progress` is given the
        number of documents done. Raises ModelError for a vector without direction, OutOfMemory.
        """
        vectors = np.empty((len(documents), self.width), dtype=np.float32)
        count = 0
        for rows in batches([len(document.ids) for document in documents], batch_tokens=self._batch_tokens):
            vectors[rows] = self._forward([documents[row] for row in rows])
            count += len(rows)
            if progress:
                progress(count)
        return vectors / self._norms(vectors) if is_unit else vectors

    def _norms(self, vectors: Float32) -> Float32:
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(norms).all() or not norms.all():
            what = "a text was embedded as a vector without direction: it is zero or not finite"
            raise ModelError(what, hint="compute in more digits: --dtype float32")
        return norms

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Inside, the base embeds alone."""
        with self.model.disable_adapter():
            yield

    def _forward(self, documents: Sequence[Document]) -> Float32:
        shape = (len(documents), max(len(document.ids) for document in documents))
        ids = torch.full(shape, self._padding, dtype=torch.long)
        mask, counted = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
        for row, document in enumerate(documents):
            ids[row, : len(document.ids)] = torch.tensor(document.ids)
            mask[row, : len(document.ids)] = 1
            counted[row, 0 if self.recipe.pool_instruction else document.first_pooled : len(document.ids)] = True
        tensors = {"input_ids": ids, "attention_mask": mask, "pooling": padded(counted, pooling=self.recipe.pooling)}
        device = self.model.device
        is_mixed = self._dtype != torch.float32
        casting = torch.autocast(device.type, dtype=self._dtype, cache_enabled=False) if is_mixed else nullcontext()
        try:
            with torch.inference_mode(), casting:
                placed = {name: tensor.to(device) for name, tensor in tensors.items()}
                return pooled(self.model, placed, is_causal=self.recipe.attention == "causal").cpu().numpy()
        except torch.OutOfMemoryError as error:
            what = f"CUDA out of memory with {shape[0]} texts of up to {shape[1]} tokens in a forward pass"
            raise OutOfMemory(what, hint=f"--batch-tokens {max(shape[1], ids.numel() // 2)}") from error
