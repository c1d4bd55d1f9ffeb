"""The kinds of samples that an objective may learn from; how each becomes steps stands in `data/samples`.

To add one: a line here, and a module there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True, kw_only=True)
class KindSpec:
    """A kind in words: `holds` ends "FILE holds ...", and `meaning` says what samples of it are.

    `teaches` is what an adapter is for that learned from it, `documents` how many a sample of train.global_batch has,
    which go through the device together; `roles` are the names of these where there are several. `takes` are other
    kinds of rows that samples of this one can be made of. `splits`: a long one may become several. `asked_for`: what to
    type for rows of this kind that were taken for others by their first row, INDEX for the number of their source.
    """

    name: str
    holds: str
    meaning: str
    teaches: Literal["answers", "vectors"] = "answers"
    documents: int = 1
    roles: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    splits: bool = False
    asked_for: str = ""


KINDS: dict[str, KindSpec] = {
    spec.name: spec
    for spec in (
        KindSpec(
            name="rows",
            holds="rows to answer from, and neither queries with passages nor preferences",
            meaning="rows to answer from",
            splits=True,
        ),
        KindSpec(
            name="pairs", holds="queries with passages to embed", meaning="queries with passages", teaches="vectors"
        ),
        KindSpec(
            name="preferences",
            holds="preference data, a chosen and a rejected answer of each prompt",
            meaning="prompts with a chosen and a rejected answer",
            documents=2,
            roles=("chosen", "rejected"),
        ),
        KindSpec(
            name="judgements",
            holds="answers that are each labelled as desirable or not",
            meaning="answers with a label",
            takes=("preferences",),
            asked_for=(
                "label each answer with true or false (label), from the first row on; "
                "--set data.sources.INDEX.format=judgement names rows without it, and reads 0 and 1"
            ),
        ),
    )
}

if TYPE_CHECKING:
    SampleKind = str
else:
    SampleKind = Literal[tuple(KINDS)]
