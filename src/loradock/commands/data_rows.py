"""The rows of a configuration as `loradock data` looks at them: prepared as a run has them, but uncut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loradock.process import signals

if TYPE_CHECKING:
    from rich.status import Status
    from transformers import PreTrainedTokenizerFast

    from loradock.config.schema import RunConfig
    from loradock.data.corpus import Corpus
    from loradock.model.source import BaseModel


@dataclass(frozen=True)
class LookedAt:
    """Rows as a run would have them, but uncut.

    `max_length`: tokens that a run would cut them to. `base`, `tokenizer`: what they are tokenised with.
    """

    corpus: Corpus
    base: BaseModel
    tokenizer: PreTrainedTokenizerFast
    max_length: int


def prepared(config: RunConfig, *, progress: Callable[[int], None]) -> LookedAt:
    """Prepare the rows. torch is not imported: of the base they need the tokenizer and the number of positions.

    What is wrong with the first of them is told before a library is imported that takes seconds.
    """
    from loradock.data import first_look

    first_look.look(config.data, objective=config.objective_spec, seconds=first_look.GLANCE_SECONDS)
    from loradock.data.corpus import prepare_corpus
    from loradock.data.select import UNCUT_TOKENS
    from loradock.env_check.examination import gathered
    from loradock.machine import Host
    from loradock.model import lengths, tokenizer
    from loradock.model.description import describe_for_rows

    base = describe_for_rows(config.model)
    text_tokenizer = tokenizer.open_tokenizer(base, add_tokens=config.tokenizer.add_tokens)
    positions = lengths.positions_of(base, config)
    corpus = prepare_corpus(
        config,
        tokenizer=text_tokenizer,
        max_length=UNCUT_TOKENS,
        facts=gathered(Host()),
        progress=lambda rows, _tokens: progress(rows),
    )
    if config.objective_spec.embeds:
        most = corpus.facts.limit_tokens
    else:
        most = lengths.longest_row(config.data.max_length, positions, rows=corpus.leading.facts.longest_tokens)
    return LookedAt(corpus=corpus, base=base, tokenizer=text_tokenizer, max_length=most)


def counted(status: Status, verb: str) -> Callable[[int], None]:
    """A progress that counts rows on a terminal's last line, and ends where a signal came."""

    def show(rows: int) -> None:
        signals.check()
        status.update(f"{rows:,} rows {verb}")

    return show
