"""Whether several documents share a row. They never see one another: positions restart, attention is per document."""

from loradock.plan.context import Decision, Question, asked

WORTH_PADDING_SHARE = 0.2


def decide(question: Question) -> Decision:
    """Pack on a GPU when padding to the longest row of a micro-batch would waste a fifth of the tokens or more."""
    wanted = question.config.train.packing
    if wanted != "auto":
        return asked("packing", wanted)
    if question.decided["engine"] == "fast":
        why = "the fast engine lays rows end to end anyway; order and samples a step stay the same"
        return Decision(name="packing", value=True, why=why)
    data = question.data
    padding = 1 - data.mean_tokens / max(1, data.longest_tokens)
    if not question.on_gpu:
        return Decision(name="packing", value=False, why="on a CPU the mask over a packed row costs more than padding")
    if padding < WORTH_PADDING_SHARE:
        return Decision(
            name="packing", value=False, why=f"rows are of like length: at most {padding:.0%} would be padding"
        )
    why = f"rows average {data.mean_tokens:.0f} of {data.longest_tokens} tokens; order and samples a step stay the same"
    return Decision(name="packing", value=True, why=why)
