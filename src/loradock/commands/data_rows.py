"""The rows of a configuration as `loradock data` looks at them: prepared as a run has them, but uncut."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loradock.process import signals

if TYPE_CHECKING:
    from rich.status import Status

    from loradock.config.schema import RunConfig
    from loradock.data.corpus import Corpus
    from loradock.facts import ModelFacts


def prepared(config: RunConfig, *, progress: Callable[[int], None]) -> tuple[Corpus, ModelFacts, int]:
    """The rows as a run would have them, but uncut; the model; and the length that a run would cut them to.

    What is wrong with the first of them is told before a library is imported that takes seconds.
    """
    from loradock.data import first_look

    first_look.look(config.data, seconds=first_look.GLANCE_SECONDS)
    from loradock.data.corpus import prepare_corpus
    from loradock.data.select import UNCUT_TOKENS
    from loradock.env_check.examination import gathered
    from loradock.machine import Host
    from loradock.model import shape, tokenizer
    from loradock.model.description import describe

    base = describe(config.model)
    text_tokenizer = tokenizer.open_tokenizer(base, add_tokens=config.tokenizer.add_tokens)
    model = shape.inspect(base, config)
    corpus = prepare_corpus(
        config,
        tokenizer=text_tokenizer,
        max_length=UNCUT_TOKENS,
        facts=gathered(Host()),
        progress=lambda rows, _tokens: progress(rows),
    )
    if config.objective_spec.embeds:
        return corpus, model, corpus.facts.limit_tokens
    longest = corpus.leading.facts.longest_tokens
    return corpus, model, shape.longest_row(config.data.max_length, model, rows=longest)


def counted(status: Status, verb: str) -> Callable[[int], None]:
    """A progress that counts rows on a terminal's last line, and ends where a signal came."""

    def show(rows: int) -> None:
        signals.check()
        status.update(f"{rows:,} rows {verb}")

    return show
