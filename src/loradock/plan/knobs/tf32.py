"""TF32 for what is left in float32 (adapters outside autocast, norms): 10 bits of mantissa, float32's range."""

from loradock.plan.context import Decision, Question, asked

FIRST_TF32 = (8, 0)


def decide(question: Question) -> Decision:
    """On where the card has it, unless float32 compute was asked for, which stays exact."""
    wanted = question.config.train.tf32
    if wanted != "auto":
        return asked("tf32", wanted)
    if not question.on_gpu:
        return Decision(name="tf32", value=False, why="a CPU has no TF32")
    architecture = question.facts.gpu.architecture
    if question.facts.gpu.capability < FIRST_TF32:
        return Decision(name="tf32", value=False, why=f"TF32 needs sm80 or newer, this card is {architecture}")
    if question.decided["compute_dtype"] == "float32":
        return Decision(name="tf32", value=False, why="float32 compute was asked for, so it stays exact")
    return Decision(name="tf32", value=True, why=f"{architecture}: up to 8x for what is left in float32")
