"""torch.compile: off unless asked for."""

from loradock.optimizations.base import Decision, Question, asked


def decide(question: Question) -> Decision:
    """4-bit layers break the graph at every linear, so compiling costs minutes and wins little."""
    if question.config.train.compile:
        return asked("compile", True)
    return Decision(name="compile", value=False, why="4-bit layers break the graph at every linear")
