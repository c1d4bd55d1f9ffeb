"""Which data.max_length to take, and what it gives up: a rule that is reported, and the trade-off in figures.

A longest length that few rows reach costs next to no arithmetic where rows are packed. What it costs is memory (a
micro-batch of this many rows is planned for it) and, without packing, padding: one long row makes its whole micro-batch
long. So what can be kept is kept, unless that costs much of either.
"""

from __future__ import annotations

from dataclasses import dataclass

from loradock.data.truncation import AtLength, Cut, Truncation
from loradock.text.amounts import percent, percent_of

GRAIN_TOKENS = 64
WHOLE_SHARE = 0.99
LEARNED_SHARE = 0.995
ANSWERS_LOST_SHARE = 0.005
MORE_WORK, MORE_LENGTH = 0.05, 2.0
"""So much more arithmetic, and this many times the shortest good length, is it worth to cut nothing."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The length to take and the rule behind it; `setting` is what `--set` takes, `reasons` are sentences.

    `needed` is the shortest length that meets the rule, None where the model has too few positions; `whole` the one
    that cuts nothing, None for the same reason.
    """

    max_length: int
    setting: str
    rule: str
    needed: int | None
    whole: int | None
    reasons: tuple[str, ...] = ()


def recommend(truncation: Truncation, *, positions: int | None) -> Recommendation:
    """The longest length that rows need and the model has, or the shortest good one where that costs much less."""
    most = rounded_up(truncation.longest)
    limit = min(most, positions) if positions else most
    needed = shortest(truncation, limit=limit)
    whole = limit if truncation.longest <= limit else None
    good = (
        f"{percent(WHOLE_SHARE)} of the rows whole and {percent(LEARNED_SHARE)} of the supervised tokens, "
        f"with at most {percent(ANSWERS_LOST_SHARE)} of the answers lost"
    )
    length = limit
    if needed is None:
        rule = f"the model has too few positions to keep {good}"
    elif limit == needed:
        rule = (
            f"the shortest multiple of {GRAIN_TOKENS} that keeps {good}, keeps everything within the model's positions"
        )
    elif limit <= MORE_LENGTH * needed and (more := more_work(truncation, limit, needed)) <= MORE_WORK:
        kept_all = "nothing is truncated" if whole else "nothing is truncated within the model's positions"
        rule = f"{kept_all}, for {percent(more)} more arithmetic than at {needed}, the shortest good length"
    else:
        length = needed
        rule = f"the shortest multiple of {GRAIN_TOKENS} that keeps {good}; keeping everything would cost much more"
    return Recommendation(max_length=length, setting=f"data.max_length={length}", rule=rule, needed=needed, whole=whole)


def more_work(truncation: Truncation, longer: int, shorter: int) -> float:
    """The share of arithmetic that a longer length adds to that of a shorter one, packed or padded: the larger."""
    more, less = truncation.at(longer), truncation.at(shorter)
    return max(more.packed.total / less.packed.total, more.padded.total / less.padded.total) - 1


def shortest(truncation: Truncation, *, limit: int) -> int | None:
    """The shortest good length up to `limit`, by bisection: what is lost only falls with the length."""
    lengths = [*range(GRAIN_TOKENS, limit, GRAIN_TOKENS), limit]
    low, high = 0, len(lengths)
    while low < high:
        middle = (low + high) // 2
        if is_good(truncation.cut(lengths[middle]), truncation):
            high = middle
        else:
            low = middle + 1
    return lengths[low] if low < len(lengths) else None


def is_good(cut: Cut, truncation: Truncation) -> bool:
    """True where a length loses no more than the rule allows."""
    return (
        cut.rows_whole >= WHOLE_SHARE * truncation.rows
        and cut.learned_tokens_lost <= (1 - LEARNED_SHARE) * truncation.learned_tokens
        and cut.answers_lost <= ANSWERS_LOST_SHARE * truncation.rows
    )


def reasons(advice: Recommendation, reckoned: list[AtLength], truncation: Truncation, *, now: int) -> tuple[str, ...]:
    """What the recommended length keeps, and what others would keep and cost: `now`, the next shorter, and all kept.

    `reckoned`: ascending, with the recommended one among them.
    """
    taken = next(each for each in reckoned if each.cut.length == advice.max_length)
    shorter = max((each.cut.length for each in reckoned if each.cut.length < advice.max_length), default=now)
    others = [each for each in reckoned if each.cut.length in {shorter, now, advice.whole} and each is not taken]
    everything = taken.tokens + taken.cut.tokens_lost
    first = (
        f"{advice.max_length} keeps {kept(taken, truncation)} and {percent_of(taken.tokens, everything)} of all "
        f"tokens; attention is {percent(taken.packed.attention_share)} of an epoch's arithmetic there"
    )
    return (first, *(compared(other, taken, truncation) for other in others))


def compared(other: AtLength, taken: AtLength, truncation: Truncation) -> str:
    """One other length in a sentence."""
    if not other.tokens:
        return f"{other.cut.length} leaves no row to train on"
    memory = other.cut.length / taken.cut.length
    packed = other.packed.total / taken.packed.total
    padded = other.padded.total / taken.padded.total
    attention = other.packed.attention / taken.packed.attention
    return (
        f"{other.cut.length} would keep {kept(other, truncation)}, at x{packed:.2f} the arithmetic packed "
        f"(attention x{attention:.2f}), x{padded:.2f} padded at micro-batch {other.padded_micro_batch}, and "
        f"x{memory:.2f} the tokens that a full micro-batch has to have memory for"
    )


def kept(at: AtLength, truncation: Truncation) -> str:
    """Rows and learned tokens that are left, in words."""
    rows = percent_of(at.cut.rows_whole, truncation.rows)
    learned = percent_of(truncation.learned_tokens - at.cut.learned_tokens_lost, truncation.learned_tokens)
    lost = at.cut.answers_lost
    answers = f" ({lost:,} {'answer' if lost == 1 else 'answers'} lost whole)" if lost else ""
    return f"{rows} of the rows whole, {learned} of the supervised tokens{answers}"


def rounded_up(tokens: int) -> int:
    """To a multiple of GRAIN_TOKENS."""
    return -(-tokens // GRAIN_TOKENS) * GRAIN_TOKENS
