"""Whether several documents share a row. They never see one another: positions restart, attention is per document."""

from loradock.errors import ConfigError
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision
from loradock.plan.trial import Trial

WORTH_PADDING_SHARE = 0.2
CARRIES_ON = "its recurrent layers would carry their state from one document into the next"


def decide(context: Context) -> Decision[bool]:
    """Pack on a GPU when padding to the longest row of a micro-batch would waste a fifth of the tokens or more.

    ConfigError where it was asked for and the model's code would not compute documents as alone: recurrent layers,
    which know none, and scales of attention that grow with the pack.
    """
    setting = context.config.train.packing
    differing = _differing(context)
    if context.config.objective_spec.has_head and not context.engine.always_packs:
        return Decision(name="packing", value=False, why="a score is read from the end of each answer, which is padded")
    if differing and setting is True:
        what = f"train.packing cannot be used with {context.model.architecture}: {differing}"
        raise ConfigError(what, hint="--set train.packing=false")
    if setting != "auto":
        return asked("packing", setting)
    if context.engine.always_packs:
        why = f"{context.engine.title} always packs; order and samples per step stay the same"
        return Decision(name="packing", value=True, why=why)
    if differing:
        return Decision(name="packing", value=False, why=differing)
    data = context.data
    padding = 1 - data.mean_tokens / max(1, data.longest_tokens)
    if not context.on_gpu:
        return Decision(name="packing", value=False, why="on a CPU the mask over a packed row costs more than padding")
    if padding < WORTH_PADDING_SHARE:
        return Decision(
            name="packing", value=False, why=f"rows have similar lengths: at most {padding:.0%} would be padding"
        )
    why = (
        f"rows average {data.mean_tokens:.0f} of {data.longest_tokens} tokens; order and samples per step stay the same"
    )
    return Decision(name="packing", value=True, why=why)


def _differing(context: Context) -> str | None:
    """Why documents in a pack would not be computed as alone; None where they would be."""
    if context.model.recurrence and not context.engine.always_packs:
        return CARRIES_ON
    setting, limit = context.config.train.micro_batch, context.pack_limit
    width = context.data.limit_tokens * max(context.least_rows, 1 if setting == "auto" else setting)
    if limit is None or width <= limit:
        return None
    return f"its attention's scale grows from a pack's start, not a document's, where it has more than {limit:,} tokens"


def propose(context: Context) -> tuple[Trial, ...]:
    """On, where it is off. With one row a pass there is no padding to spare, but passes are fewer."""
    if context.plan.packing.value or _differing(context) or context.config.objective_spec.has_head:
        return ()
    return (
        Trial(
            name="packing-on",
            title="documents packed end to end instead of padded",
            settings=("train.packing=true",),
            cause="padding: rows are filled up to the longest of their micro-batch",
            phase="passes",
        ),
    )
