"""The longest sample in tokens; and rows of half the length, with what that costs in tokens and rows."""

from __future__ import annotations

from dataclasses import replace

from loradock.facts import DataFacts
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision
from loradock.plan.row_cut import lost_shares
from loradock.plan.trial import Trial

LEAST_TOKENS = 32
HEAVY_SHARE = 0.1


def decide(context: Context) -> Decision[int]:
    """As the rows were prepared: auto covers the longest one, as far as the model has positions."""
    decision = of_rows(context)
    return replace(decision, why="; ".join([decision.why, *scaled(context)]))


def scaled(context: Context) -> list[str]:
    """What stretched positions mean for these rows; nothing where the base's own are left."""
    model_config, positions = context.config.model, context.model.context_length
    if model_config.rope_scaling == "off" or not positions:
        return []
    window = round(positions / model_config.rope_factor)
    stretched = f"{model_config.rope_scaling} x{model_config.rope_factor:g} stretches the base's {window:,} positions"
    if context.data.longest_tokens <= window:
        gain = "and no row is longer: it changes how all are read, and gains nothing (--set model.rope_scaling=off)"
        return [f"{stretched}, {gain}"]
    return [f"{stretched}: rows that fit them are read otherwise than by the base, too"]


def of_rows(context: Context) -> Decision[int]:
    """Without a word on positions."""
    data = context.data
    if context.config.data.max_length != "auto":
        return asked("max_length", data.limit_tokens)
    over_long = data.split_rows + data.truncated_rows + data.dropped_rows
    if not over_long:
        why = f"no row is longer: the longest has {data.longest_tokens:,} tokens"
    else:
        why = f"the model's positions; {over_long:,} rows are longer (data.long_rows {context.config.data.long_rows})"
    return Decision(name="max_length", value=data.limit_tokens, why=why)


def propose(context: Context) -> tuple[Trial, ...]:
    """Half, where some row is longer than that: else nothing would change but the unit of the micro-batch."""
    data = context.data
    half = data.limit_tokens // 2
    if half < LEAST_TOKENS or data.longest_tokens <= half:
        return ()
    least, most = lost_shares(data, half)
    is_dropping = context.config.data.long_rows == "drop"
    return (
        Trial(
            name="sequence-length-x0.5",
            title=f"rows of at most {half} tokens instead of {data.limit_tokens}",
            settings=(f"data.max_length={half}",),
            cause="rows are long: attention and memory grow with them, and padding to them",
            phase="passes",
            price=price(data, half, least=least, most=most, long_rows=context.config.data.long_rows),
            accuracy_risk="high" if least > HEAVY_SHARE or is_dropping else "moderate",
        ),
    )


def price(data: DataFacts, length: int, *, least: float, most: float, long_rows: str) -> str:
    """The price in words; how many rows and tokens exactly, only the rows themselves say."""
    rows, is_dropping = min(data.train_rows, data.tokens // (length + 1)), long_rows == "drop"
    if long_rows == "split":
        return (
            f"up to {rows:,} of {data.train_rows:,} rows are split: what is learned beyond their last {length} tokens "
            f"no longer sees all that comes before it; `loradock data stats --lengths {length}` counts them"
        )
    trained_tokens = data.tokens if is_dropping else round(most * data.tokens)
    doing = "dropped whole" if is_dropping else "cut off"
    floor = f"{least:.0%} to " if least > 0 else "up to "
    return (
        f"{floor}{trained_tokens / data.tokens:.0%} of the tokens in up to {rows:,} of {data.train_rows:,} rows "
        f"are {doing}; "
        f"`loradock data stats --lengths {length}` counts them"
    )
