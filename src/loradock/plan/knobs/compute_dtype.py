"""The dtype of matrix products. Adapters and optimiser state stay float32 whatever it is."""

from loradock.errors import EnvironmentUnfit
from loradock.plan.context import Decision, Question, asked

FIRST_BFLOAT16 = (8, 0)


def decide(question: Question) -> Decision:
    """bfloat16 from sm80, float16 below (no tensor cores for bfloat16), float32 on the CPU."""
    wanted = question.config.model.compute_dtype
    if not question.on_gpu:
        if wanted == "float16":
            raise EnvironmentUnfit(
                "compute_dtype float16 needs a GPU: the CPU has no float16 loss scaling",
                hint="--set model.compute_dtype=float32 (or bfloat16)",
            )
        if wanted != "auto":
            return asked("compute_dtype", wanted)
        return Decision(name="compute_dtype", value="float32", why="on a CPU: exact, and the same on every processor")
    card = question.facts.gpu
    if wanted == "bfloat16" and card.capability < FIRST_BFLOAT16:
        raise EnvironmentUnfit(
            f"compute_dtype bfloat16 needs sm80 or newer; {card.name} is {card.architecture}",
            hint="--set model.compute_dtype=float16",
        )
    if wanted != "auto":
        return asked("compute_dtype", wanted)
    if card.capability >= FIRST_BFLOAT16:
        return Decision(
            name="compute_dtype", value="bfloat16", why=f"{card.architecture}: float32's range, no loss scaling"
        )
    why = f"{card.architecture} has no tensor cores for bfloat16 (sm80 and newer have); the loss is scaled"
    return Decision(name="compute_dtype", value="float16", why=why)
