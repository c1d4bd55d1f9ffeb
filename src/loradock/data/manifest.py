"""What the manifest of an entry of the cache holds, read into types: a value of another kind makes the entry broken."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0, lt=2**62)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Kept(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class KeptColumn(_Kept):
    """A column that no field takes."""

    name: str
    rows: Count
    share: Annotated[float, Field(ge=0, le=1)]
    sample: str


class KeptContents(_Kept):
    """See `columns.Contents`."""

    format: str
    unused: list[KeptColumn]
    starts: list[Count]


class Manifest(_Kept):
    """The counts of an entry, its sources in order, and the digests of its files."""

    key: str
    rows: Annotated[int, Field(ge=1, lt=2**62)]
    tokens: Count
    learned_tokens: Count
    samples: Count
    files: dict[str, Digest]
    spans: list[Annotated[list[Count], Field(min_length=2, max_length=2)]]
    sources: list[str]
    contents: list[KeptContents]
    template: str
    conversations: Count
    special_texts: dict[str, Count]
    remarks: list[Annotated[tuple[str, str, Count], Field(strict=False)]]  # JSON has lists alone
    cut_documents: Count
    skipped_rows: Count = 0
    skipped: list[str] = []
    maker: Digest | None = None
    blocks: Digest | None = None

    @model_validator(mode="after")
    def is_consistent(self) -> Self:
        """Every document is of one source, in order."""
        if not len(self.spans) == len(self.sources) == len(self.contents):
            raise ValueError("spans, sources and contents differ in number")
        edges = [0, *chain.from_iterable(self.spans), self.rows]
        if any(first > last for first, last in pairwise(edges)) or edges[::2] != edges[1::2]:
            raise ValueError("spans leave rows out")
        if any(contents.starts != sorted(contents.starts) for contents in self.contents):
            raise ValueError("starts are in no order")
        return self
